"""A cost model restricted to one mode."""

from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.one_mode import OneMode

BOTH = LinearCost(model_bytes=5.0, recomputes=True, weights_ms=(3.0, 7.0))


def test_a_plan_may_use_one_mode_and_the_rest_is_as_before() -> None:
    one = OneMode(BOTH, Recompute.FULL)
    assert one.recompute_modes == (Recompute.FULL,)
    assert one.description == BOTH.description
    assert one.is_encoder_decoder == BOTH.is_encoder_decoder
    assert one.reduce_ms.tolist() == BOTH.reduce_ms.tolist()
    assert one.step_ms == BOTH.step_ms
    assert one.static_bytes.tolist() == BOTH.static_bytes.tolist()
    shapes = Shapes.of([MicroBatch(((0,), (1,)), 8)], one.known_rows)
    expected = BOTH.stage_costs(shapes, Recompute.FULL)
    assert one.stage_costs(shapes, Recompute.FULL).table.tolist() == expected.table.tolist()
