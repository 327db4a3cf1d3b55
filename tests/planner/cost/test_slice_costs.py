"""Costs of slices, and of gradients of weights that wait."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import decoder_shapes
from tests.examples.measured_layers import ROW_TOKENS, ROWS, SHAPE, linear_layer, linear_table

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import PackedRow, Recompute, Slice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.cost.interpolate import make_monotone
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes, on_three_axes
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.slice_costs import near_pairs
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile
from dynapipe_hpc.planner.cost.weight_gradients import split_times

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


AXES: Axes = (ROWS, ROW_TOKENS, NO_TARGET)
LAYER = on_three_axes({"layer": linear_layer(1.0)})["layer"]


@pytest.mark.parametrize("kind", ["head", "embedding", "stage"])
def test_only_layers_defer(kind: str) -> None:
    found = split_times(
        kind, LAYER, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=Recompute.NONE
    ).weight_ms
    np.testing.assert_array_equal(found, 0 * LAYER.backward_ms)


@pytest.mark.parametrize(
    ("mode", "deferred"), [(Recompute.NONE, 1536), (Recompute.SELECTIVE, 1024), (Recompute.FULL, 0)]
)
def test_a_layer_takes_the_share_of_its_maps_that_are_not_recomputed(
    mode: Recompute, deferred: int
) -> None:
    found = split_times(
        "layer", LAYER, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=mode
    ).weight_ms
    # Per token 8 x 8 x 8 + 4 x 8 x 32 FLOPs in maps, and 4 x 8 per token of its row.
    for place, tokens in enumerate(ROW_TOKENS):
        share = deferred / (2 * (1536 + 32 * tokens))
        assert found[0, place, 0] == pytest.approx(share * LAYER.backward_ms[0, place, 0])


def test_a_measured_part_wins_but_for_what_exceeds_the_pass() -> None:
    measured = replace(LAYER, weight_ms=np.full_like(LAYER.backward_ms, 100.0))
    found = split_times(
        "layer", measured, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=Recompute.FULL
    )
    np.testing.assert_array_equal(found.weight_ms, np.minimum(100.0, LAYER.backward_ms))
    assert not found.splitting_ms.any()


def test_what_halves_take_longer_than_the_whole_is_what_splitting_takes() -> None:
    whole_ms = LAYER.backward_ms
    for input_ms, weight_ms, splitting_ms in (
        (0.75 * whole_ms, 0.5 * whole_ms, 0.25 * whole_ms),
        (0.25 * whole_ms, 1.5 * whole_ms, 0.75 * whole_ms),  # even if weights alone take longer
        (0.5 * whole_ms, 0.25 * whole_ms, 0 * whole_ms),  # by noise
    ):
        halves = replace(LAYER, input_ms=input_ms, weight_ms=weight_ms)
        found = split_times(
            "layer", halves, whole_ms, shape=SHAPE, axes=AXES, recompute=Recompute.NONE
        )
        np.testing.assert_array_equal(found.weight_ms, np.minimum(weight_ms, whole_ms))
        np.testing.assert_array_equal(found.splitting_ms, splitting_ms)


def test_noise_in_whole_passes_is_no_gain_or_loss_of_halves() -> None:
    slow = LAYER.backward_ms.copy()
    slow[0, 0] *= 3  # more than with twice as many rows or tokens
    halves = replace(LAYER, backward_ms=slow, input_ms=0.75 * slow, weight_ms=0.5 * slow)
    found = split_times("layer", halves, slow, shape=SHAPE, axes=AXES, recompute=Recompute.NONE)
    whole_ms = make_monotone(slow).grid
    assert not np.array_equal(whole_ms[:2], slow[:2])
    np.testing.assert_allclose(found.weight_ms[:2], 0.5 * whole_ms[:2])
    np.testing.assert_allclose(found.splitting_ms[:2], 0.25 * whole_ms[:2])


def test_what_is_infeasible_because_less_is_has_no_halves_either() -> None:
    layer, stage = linear_layer(1.0), linear_layer(0.0)
    hole = {}
    for name, grid in layer.grids.items():
        hole[name] = grid.copy()
        hole[name][1, 1] = np.nan
    forward_ms = hole["forward_ms"]
    halves = replace(layer, **hole, input_ms=1.5 * forward_ms, weight_ms=forward_ms)  # type: ignore[arg-type]
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    placement = equal_shares(SHAPE, cluster)
    table = linear_table(layer=halves, stage=stage)
    cost = profiled_cost(table, SHAPE, placement, cluster, config=ProfiledConfig(path=Path("c.h5")))
    costs = cost.stage_costs(decoder_shapes(np.array([1, 2, 4]), np.array([32, 32, 64])))
    assert np.isfinite(costs.splitting_ms).all(axis=1).tolist() == [True, False, False]
    assert np.isinf(costs.splitting_ms[1:]).all()
