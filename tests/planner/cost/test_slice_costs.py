"""Costs of slices by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, linear_layer, linear_table

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import PackedRow, Slice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.slice_costs import near_pairs
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile

THREE_STAGES = Cluster(n_stages=3, device_memory_bytes=10**9)
SLICE = PackedRow((0,), 32, (0, 32), slice=Slice(64, 96, 128))


class WindowedShape(GptShape):
    """A model that says that it has windows."""

    @property
    def window(self) -> float:
        return 40.0


def costs_of(layer: LayerProfile, *rows: PackedRow, shape: ModelShape = SHAPE) -> StageCosts:
    cost = profiled_cost(
        linear_table(layer=layer),
        shape,
        equal_shares(SHAPE, THREE_STAGES),
        THREE_STAGES,
        config=ProfiledConfig(path=Path("c.h5")),
    )
    return cost.stage_costs(shapes_of(rows, cost.known_rows))


def test_a_slice_takes_what_a_row_does_and_its_pairs_with_what_is_before_it() -> None:
    row = PackedRow((0,), 32, (0, 32))
    layer = replace(linear_layer(1.0), pair_ms=np.array([0.25, 0.5]))
    of_slice, of_row = costs_of(layer, SLICE), costs_of(layer, row)
    n_pairs, n_layers = 32 * 64, 2
    more_forward = of_slice.forward_ms - of_row.forward_ms
    more_backward = of_slice.backward_ms - of_row.backward_ms
    np.testing.assert_allclose(more_forward, [[n_layers * n_pairs * 0.25] * 3], rtol=1e-12)
    np.testing.assert_allclose(more_backward, [[n_layers * n_pairs * 0.5] * 3], rtol=1e-12)
    for name in ("stored_bytes", "forward_transient_bytes", "boundary_bytes"):
        np.testing.assert_allclose(getattr(of_slice, name), getattr(of_row, name), rtol=1e-12)


def test_pairs_within_windows_take_what_was_measured_of_them() -> None:
    both = replace(
        linear_layer(1.0), pair_ms=np.array([0.25, 0.5]), near_pair_ms=np.array([1.0, 3.0])
    )
    full = replace(both, near_pair_ms=None)
    shape = WindowedShape.model_validate(SHAPE.model_dump())
    of_both, of_full = costs_of(both, SLICE, shape=shape), costs_of(full, SLICE, shape=shape)
    n_near = sum(0 <= query - key < 40 for query in range(64, 96) for key in range(64))
    more_forward = of_both.forward_ms - of_full.forward_ms
    more_backward = of_both.backward_ms - of_full.backward_ms
    np.testing.assert_allclose(more_forward, [[2 * n_near * 1.0] * 3], rtol=1e-12)
    np.testing.assert_allclose(more_backward, [[2 * n_near * 3.0] * 3], rtol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 7, 30, 31, 200, np.inf])
@pytest.mark.parametrize(("tokens", "before"), [(1, 0), (1, 29), (30, 0), (30, 3), (6, 30)])
def test_pairs_within_windows_are_counted_one_by_one(
    window: float, tokens: int, before: int
) -> None:
    seen = [
        query - key < window for query in range(before, before + tokens) for key in range(before)
    ]
    found = near_pairs(np.array([float(tokens)]), np.array([float(before)]), window)
    assert found.tolist() == [sum(seen)]
