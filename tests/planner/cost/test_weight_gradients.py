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
    T5_SHAPE,
    linear_decoder,
    linear_layer,
    linear_table,
)

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes, at_points, on_three_axes
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.cost.table.profile_table import LayerKey
from dynapipe_hpc.planner.cost.weight_gradients import weight_ms

AXES: Axes = (ROWS, ROW_TOKENS, NO_TARGET)
LAYER = on_three_axes({"layer": linear_layer(1.0)})["layer"]
UNKNOWN = np.full((1, 1, 1), np.nan)


@pytest.mark.parametrize("kind", ["head", "embedding", "stage"])
def test_only_layers_defer(kind: str) -> None:
    found = weight_ms(kind, LAYER, LAYER.backward_ms, SHAPE, AXES, Recompute.NONE)
    np.testing.assert_array_equal(found, 0 * LAYER.backward_ms)


@pytest.mark.parametrize(
    ("mode", "deferred"),
    [(Recompute.NONE, 1536), (Recompute.SELECTIVE, 1024), (Recompute.FULL, 0)],
)
def test_a_layer_takes_the_share_of_its_maps_that_are_not_recomputed(
    mode: Recompute, deferred: int
) -> None:
    found = weight_ms("layer", LAYER, LAYER.backward_ms, SHAPE, AXES, mode)
    # Per token 8 x 8 x 8 + 4 x 8 x 32 FLOPs in maps, and 4 x 8 per token of its row.
    for place, tokens in enumerate(ROW_TOKENS):
        share = deferred / (2 * (1536 + 32 * tokens))
        assert found[0, place, 0] == pytest.approx(share * LAYER.backward_ms[0, place, 0])


def test_a_decoder_layer_also_maps_and_attends_to_the_inputs() -> None:
    decoder = on_three_axes({"decoder": linear_decoder(1.0)})["decoder"]
    axes = (ROWS, ROW_TOKENS, ROW_TOKENS)
    found = weight_ms("decoder", decoder, decoder.backward_ms, T5_SHAPE, axes, Recompute.NONE)
    inputs, targets = 32, 16
    maps = targets * (12 * 8 * 32 + 4 * 8 * 32) + inputs * 4 * 8 * 32
    attention = 4 * 32 * targets * (targets + inputs)
    # Behind the ReLU is a map that does not defer.
    share = (maps - targets * 2 * 8 * 32) / (2 * (maps + attention))
    assert found[0, 1, 0] == pytest.approx(share * decoder.backward_ms[0, 1, 0])


def test_what_is_recomputed_is_no_gradient_of_weights() -> None:
    longer, mode = replace(LAYER, backward_ms=1.5 * LAYER.backward_ms), Recompute.SELECTIVE
    share = (512 / (1536 + 32 * ROW_TOKENS))[np.newaxis, :, np.newaxis]
    known = weight_ms("layer", longer, LAYER.backward_ms, SHAPE, AXES, mode)
    np.testing.assert_allclose(known, share * LAYER.backward_ms, rtol=1e-15)
    # Where the pass without recomputation is not known, a forward pass is taken off.
    guessed = weight_ms("layer", longer, UNKNOWN, SHAPE, AXES, mode)
    unrepeated_ms = longer.backward_ms - longer.forward_ms
    np.testing.assert_allclose(guessed, share * unrepeated_ms, rtol=1e-15)


def test_a_measured_part_wins_but_for_what_exceeds_the_pass() -> None:
    measured = replace(LAYER, weight_ms=np.full_like(LAYER.backward_ms, 100.0))
    found = weight_ms("layer", measured, LAYER.backward_ms, SHAPE, AXES, Recompute.FULL)
    np.testing.assert_array_equal(found, np.minimum(100.0, LAYER.backward_ms))


def test_points_of_another_grid_are_unknown() -> None:
    wanted = (np.array([2, 3]), np.array([16, 64, 128]), NO_TARGET)
    found = at_points(LAYER.forward_ms, AXES, wanted)[..., 0]
    np.testing.assert_array_equal(found, np.array([[32, 128, np.nan], [np.nan] * 3]))


def test_modes_share_the_times_without_recomputation_of_what_both_keep() -> None:
    plain, full = linear_table("none"), linear_table("selective")
    twice = {
        key: replace(layer, backward_ms=2 * layer.backward_ms)
        for key, layer in full.layers.items()
        if key.kind != "stage"
    }
    table = replace(plain, layers={**plain.layers, **full.layers, **twice})
    config = ProfiledConfig(path=Path("c.h5"), recompute=("none", "selective"))
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = ProfiledCost(table, SHAPE, equal_shares(SHAPE, cluster), cluster, config)
    shapes = decoder_shapes(np.array([2, 3]), np.array([32, 20]))
    of_mode = [cost.stage_costs(shapes, mode) for mode in (Recompute.NONE, Recompute.SELECTIVE)]
    np.testing.assert_allclose(of_mode[0].weight_ms * 1024 / 1536, of_mode[1].weight_ms)
    np.testing.assert_allclose(2 * of_mode[0].backward_ms, of_mode[1].backward_ms)
    assert LayerKey(1, "selective", "layer") in table.layers
