import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.examples.training_case import (
    SHAPE,
    Rank,
    make_rank,
    packed,
    padded,
    random_samples,
)

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

SAMPLES = random_samples(1)
BATCH = padded(SAMPLES)
TWO_STAGES = Cluster(n_stages=2, device_memory_bytes=1)
FOUR_STAGES = Cluster(n_stages=4, device_memory_bytes=1)


def rank_of(stage: int) -> Rank:
    rank = make_rank(TWO_STAGES, stage, SingleRankCollectives())
    rank.tokens.start_iteration(SAMPLES)
    return rank


every_mode = pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)


@every_mode
def test_nothing_of_a_micro_batch_outlives_its_backward(mode: Recompute) -> None:
    rank = rank_of(1)
    numbers = np.ones((15, 24, 16))
    numbers_live = weakref.ref(numbers)  # as long as a tensor's storage refers to them
    activation = torch.from_numpy(numbers)
    del numbers
    gc.disable()  # what only a collector could free would not count
    try:
        rank.stage.load(0, replace(BATCH, recompute=mode))
        rank.stage.forward(0, activation)
        del activation
        assert numbers_live() is not None
        rank.stage.backward(0, None)
        assert numbers_live() is None
    finally:
        gc.enable()


# Per position of a layer: hidden (h), inner (f), two numbers of each norm, one per head.
# Kept by the layer besides what it hands on: normed hidden twice, queries, keys, values and
# mixed, hidden between the halves; and the two sides of the GELU.
H, F, HEADS = SHAPE.hidden_size, SHAPE.ffn_size, SHAPE.n_heads
NORM = 2
ATTENTION = H + NORM + 3 * H + H + HEADS
FEED_FORWARD = H + H + NORM + 2 * F


@pytest.mark.parametrize(
    ("mode", "kept_by_a_layer"),
    [
        (Recompute.NONE, ATTENTION + FEED_FORWARD),
        (Recompute.SELECTIVE, FEED_FORWARD),
        (Recompute.FULL, 0),
    ],
)
def test_a_stage_keeps_what_its_mode_does_not_recompute(
    mode: Recompute, kept_by_a_layer: int
) -> None:
    rank = make_rank(FOUR_STAGES, 1, SingleRankCollectives())
    rank.stage.load(0, replace(BATCH, recompute=mode))
    rank.stage.forward(0, torch.ones(15, 24, H, dtype=torch.float64))
    numbers = H + kept_by_a_layer + H  # received, kept, handed on
    assert rank.stage.finish_iteration().peak_bytes == 8 * 15 * 24 * numbers


@every_mode
@pytest.mark.parametrize("whole", [BATCH, packed(SAMPLES)], ids=lambda batch: batch.layout.text)
def test_recomputing_does_not_change_a_bit(whole: MicroBatch, mode: Recompute) -> None:
    ranks = [rank_of(1), rank_of(1)]
    activation = torch.ones(whole.n_rows, whole.row_tokens, H, dtype=torch.float64)
    sent = []
    for rank, batch in zip(ranks, (whole, replace(whole, recompute=mode)), strict=True):
        rank.stage.load(0, batch)
        rank.stage.forward(0, activation)
        sent.append(rank.stage.backward(0, None))
    assert sent[0] is not None
    assert sent[1] is not None
    assert torch.equal(sent[0], sent[1])
    for name, gradient in ranks[0].gradients().items():
        assert torch.equal(ranks[1].gradients()[name], gradient), name


def test_the_loss_starts_at_zero_in_every_iteration() -> None:
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives())
    rank.tokens.start_iteration(SAMPLES)
    losses = []
    for _ in range(2):
        rank.stage.load(0, BATCH)
        rank.stage.forward(0, None)
        rank.stage.backward(0, None)
        losses.append(rank.stage.finish_iteration().loss)
    assert losses[0] == losses[1] > 1


def test_peak_memory_is_that_of_the_micro_batches_kept_at_once() -> None:
    peaks = []
    for n_ahead in (1, 2, 3):
        rank = rank_of(0)
        gradient = torch.ones(15, 24, 16, dtype=torch.float64)
        for i in range(n_ahead):
            rank.stage.load(i, BATCH)
            rank.stage.forward(i, None)
        for i in range(n_ahead):
            rank.stage.backward(i, gradient)
        peaks.append(rank.stage.finish_iteration().peak_bytes)
        assert rank.stage.finish_iteration().peak_bytes == 0
    assert peaks[1] == 2 * peaks[0]
    assert peaks[2] == 3 * peaks[0]
