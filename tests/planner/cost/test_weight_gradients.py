"""The part of a backward pass that computes gradients of weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import (
    ROW_TOKENS,
    ROWS,
    SHAPE,
    linear_layer,
    linear_table,
)
from tests.examples.schedule_text import parse_schedule

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes, on_three_axes
from dynapipe_hpc.planner.cost.monotone import make_monotone
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.weight_gradients import split_times
from dynapipe_hpc.planner.schedule.simulate import simulate

AXES: Axes = (ROWS, ROW_TOKENS, NO_TARGET)
LAYER = on_three_axes({"layer": linear_layer(1.0)})["layer"]


@pytest.mark.parametrize("kind", ["head", "embedding", "stage"])
def test_only_layers_defer(kind: str) -> None:
    found = split_times(
        kind, LAYER, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=Recompute.NONE
    ).weight_ms
    np.testing.assert_array_equal(found, 0 * LAYER.backward_ms)


@pytest.mark.parametrize(
    ("mode", "deferred"),
    [(Recompute.NONE, 1536), (Recompute.SELECTIVE, 1024), (Recompute.FULL, 0)],
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


def test_a_table_with_halves_is_believed_and_one_without_is_estimated() -> None:
    layer, stage = linear_layer(1.0), linear_layer(0.0)
    halves = replace(layer, input_ms=1.25 * layer.forward_ms, weight_ms=layer.forward_ms)
    ones = np.ones_like(stage.forward_ms)
    pop = replace(stage, backward_ms=4 * ones, input_ms=3 * ones, weight_ms=2 * ones)
    table = linear_table(layer=halves, stage=pop)
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    placement = equal_shares(SHAPE, cluster)
    cost = profiled_cost(table, SHAPE, placement, cluster, config=ProfiledConfig(path=Path("c.h5")))
    costs = cost.stage_costs(decoder_shapes(np.array([2]), np.array([32])))
    tokens, n_layers = 64, 2
    np.testing.assert_allclose(costs.weight_ms[0], n_layers * tokens + 2)
    np.testing.assert_allclose(costs.splitting_ms[0], n_layers * tokens / 4 + 1)
    np.testing.assert_allclose(costs.backward_ms[0], 2 * tokens * (2 + np.array([0.5, 0, 3])) + 4)
    # Where the schedule splits, B takes what it was measured to take, of each part.
    whole = parse_schedule("F0 B0\nF0 B0\nF0 B0")
    split = parse_schedule("F0 B0 W0\nF0 B0 W0\nF0 B0 W0")
    busy_ms = [simulate(each, costs, Link(), np.zeros(3)).busy_ms for each in (whole, split)]
    np.testing.assert_allclose(busy_ms[1] - busy_ms[0], n_layers * tokens / 4 + 1)
