"""Measured costs of packed pairs, whose sides count as different rows."""

from pathlib import Path

import numpy as np
from tests.examples.measured_layers import T5_SHAPE, linear_t5_table, with_packed

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.profiled import profiled_cost

CLUSTER = Cluster(n_stages=3, device_memory_bytes=10**9)
PLACEMENT = Placement((2, 2, 2))  # encoder; its end and the decoder's beginning; decoder
CONFIG = ProfiledConfig(path=Path("costs.h5"))
COST = profiled_cost(linear_t5_table(), T5_SHAPE, PLACEMENT, CLUSTER, config=CONFIG)


def test_equal_rows_cost_what_they_cost_with_both_sides_together() -> None:
    shapes = Shapes.padded(*np.array([[1.5, 4, 2], [20, 64, 33.3], [16, 25, 64]]))
    apart = COST.of_layout(Layout.PACKED).stage_costs(shapes)
    np.testing.assert_allclose(apart.table, COST.stage_costs(shapes).table, rtol=1e-12)
    below = COST.monotone.of_layout(Layout.PACKED).stage_costs(shapes)
    assert (below.table <= apart.table * (1 + 1e-12)).all()


def test_what_no_row_can_have_is_infeasible_on_the_stages_of_its_side() -> None:
    # Eight rows of inputs of 40 tokens were not measured, two of 160 are longer than any.
    for shape, too_large in (
        ((1, 64, 16, 8), False),
        ((4, 64, 64, 4), False),
        ((8, 40, 16, 8), True),
    ):
        shapes = Shapes(*(np.array([float(size)]) for size in shape))
        costs = COST.of_layout(Layout.PACKED).stage_costs(shapes)
        assert np.isinf(costs.forward_ms[0, 0]) == too_large


def test_packed_pairs_are_looked_up_where_they_were_measured() -> None:
    table = with_packed(linear_t5_table(), 0.5)
    cost = profiled_cost(table, T5_SHAPE, PLACEMENT, CLUSTER, config=CONFIG)
    shapes = Shapes.padded(*np.array([[3.0], [24], [40]]))
    padded, packed = (each.stage_costs(shapes) for each in (cost, cost.of_layout(Layout.PACKED)))
    np.testing.assert_allclose(packed.forward_ms, 0.5 * padded.forward_ms, rtol=1e-12)
    np.testing.assert_allclose(packed.boundary_bytes, padded.boundary_bytes, rtol=1e-12)
    assert cost.describe().startswith("measured in padded and packed rows")
    assert COST.describe().startswith("measured in padded rows")
