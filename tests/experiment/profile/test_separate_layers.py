import numpy as np
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import (
    layer_profiles,
    separate_layers,
    separate_pairs,
    separate_sides,
)
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.cost.table.profile_table import LayerKey

GRID = ProfileGrid.from_config(tiny_experiment(), max_tokens=64)
TOKENS = np.array([m.padded_tokens for m in GRID.microbatches()], dtype=np.float64)


def test_the_time_of_a_layer_per_pair_is_recovered_from_both_stacks() -> None:
    layer = np.array([0.25, 0.5, 0.0, 0.0, 0.0])
    assert separate_pairs(np.stack([layer, 2 * layer])[np.newaxis]).tolist() == [0.25, 0.5]


def test_the_parts_of_both_sides_are_recovered() -> None:
    growing = TOKENS[:, np.newaxis] * [1.0, 2.0, 40.0, 0.0, 0.0]
    sent = 4 * TOKENS[:, np.newaxis] * [0, 0, 1, 0, 0]
    stage = np.outer(np.ones_like(TOKENS), [3.0, 4.0, 0, 0, 0])
    # A bias of a side that is lost in what stages take besides where rows are short.
    bias = np.maximum(0, TOKENS - 32)[:, np.newaxis] * [1.0, 3.0, 100.0, 0, 0]
    embedding, head = 0.5 * growing, 2 * growing
    encoders = [stage + sent + bias + n * growing for n in (1, 2)]
    ends = [stage + embedding + sent, stage + head + 2 * sent]
    decoders = [stage + 2 * sent + 2 * bias + 3 * n * growing for n in (1, 2)]
    found = separate_sides(
        np.stack([*encoders, *ends], axis=1), np.stack(decoders, axis=1), sent[:, 2]
    )
    expected = {
        STAGE: stage,
        ENCODER: growing,
        ENCODER_SIDE: bias + sent,
        DECODER: 3 * growing,
        DECODER_SIDE: 2 * bias + 2 * sent,
        EMBEDDING: embedding,
        HEAD: head,
    }
    assert found.keys() == expected.keys()
    for kind, costs in expected.items():
        np.testing.assert_allclose(found[kind][:, :3], costs[:, :3], rtol=1e-12, atol=1e-9)


def test_a_side_needs_in_passing_what_the_larger_stack_of_it_needs() -> None:
    encoder, decoder = np.ones((4, 4, 5)), np.ones((4, 2, 5))
    encoder[:, 0, 3:], decoder[:, 1, 3:] = 7.0, 8.0
    found = separate_sides(encoder, decoder, np.zeros(4))
    largest = {kind: costs[0, 3:].tolist() for kind, costs in found.items()}
    nothing = {kind: [0.0, 0.0] for kind in (STAGE, ENCODER_SIDE, DECODER_SIDE)}
    needed = {ENCODER: [7.0, 7.0], DECODER: [8.0, 8.0], EMBEDDING: [1.0, 1.0], HEAD: [1.0, 1.0]}
    assert largest == nothing | needed


def test_what_was_not_measured_is_infeasible_in_the_profile() -> None:
    stacks = {LAYER: np.ones((4, 4, 5))}
    profiles = layer_profiles(
        stacks, GRID, tiny_experiment(), ExecutionMode(Layout.PADDED, Recompute.FULL)
    )
    layer = profiles[LayerKey(1, "full", LAYER)]
    assert [axis.tolist() for axis in layer.axes] == [[1, 2, 4], [16, 32]]
    assert np.isnan(layer.forward_ms).sum() == 6 - 4
    assert layer.parameter_bytes == 4 * (4 * 16 * 17 + 2 * 16 * 64 + 64 + 16 + 4 * 16)


def test_halves_are_separated_as_whole_passes_are() -> None:
    growing = TOKENS[:, np.newaxis] * [1.0, 3.0, 40.0, 0.0, 0.0, 2.25, 1.5]
    stage = np.outer(np.ones_like(TOKENS), [1.0, 2.0, 0, 0, 0, 2.5, 0.5])
    end = stage + growing
    end[:, 5:] = np.nan  # an embedding or a head, whose passes are not split
    encoder = np.stack([stage + growing, stage + 2 * growing, end, end], axis=1)
    decoder = np.stack([stage + 3 * growing, stage + 6 * growing], axis=1)
    for found, kinds in (
        (separate_layers(encoder), {STAGE: stage, LAYER: growing}),
        (
            separate_sides(encoder, decoder, np.zeros_like(TOKENS)),
            {STAGE: stage, ENCODER: growing, DECODER: 3 * growing},
        ),
    ):
        for kind, costs in kinds.items():
            times_and_stored = [0, 1, 2, 5, 6]
            np.testing.assert_allclose(
                found[kind][:, times_and_stored], costs[:, times_and_stored], rtol=1e-12
            )
        assert np.isnan(found[EMBEDDING][:, 5:]).all()
        for kind in (EMBEDDING, HEAD):
            np.testing.assert_allclose(found[kind][:, :3], growing[:, :3], rtol=1e-12)
