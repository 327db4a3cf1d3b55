"""A cost model restricted to one mode."""

from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import Layout, PaddedRows, Recompute
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.derived_cost import OneMode

BOTH = LinearCost(model_bytes=5.0, recomputes=True, weights_ms=(3.0, 7.0))


def test_a_plan_may_use_one_mode_and_the_rest_is_as_before() -> None:
    one = OneMode(BOTH, Recompute.FULL)
    assert one.recompute_modes == (Recompute.FULL,)
    assert one.description == BOTH.description
    assert one.is_encoder_decoder == BOTH.is_encoder_decoder
    assert one.reduce_ms.tolist() == BOTH.reduce_ms.tolist()
    assert one.step_ms == BOTH.step_ms
    assert one.static_bytes.tolist() == BOTH.static_bytes.tolist()
    shapes = shapes_of([PaddedRows((0, 1), 8)], one.known_rows)
    expected = BOTH.stage_costs(shapes, Recompute.FULL)
    assert one.stage_costs(shapes, Recompute.FULL).table.tolist() == expected.table.tolist()


class LayoutCost(LinearCost):
    """Packed rows take no memory."""

    def of_layout(self, layout: Layout) -> LinearCost:
        return LinearCost(token_bytes=0.0) if layout is Layout.PACKED else self


def test_layouts_differ_in_one_mode_as_in_all() -> None:
    one = OneMode(LayoutCost(token_bytes=1.0), Recompute.NONE)
    shapes = shapes_of([PaddedRows((0,), 8)], one.known_rows)
    for layout, stored_bytes in ((Layout.PACKED, 0.0), (Layout.PADDED, 8.0)):
        costs = one.of_layout(layout).stage_costs(shapes)
        assert costs.stored_bytes.tolist() == [[stored_bytes] * 2]
