"""Masks of dropout: of what they are made, what is kept for them, and when there are none."""

import numpy as np
import pytest
import torch
from tests.examples.training_case import (
    CPU,
    GATED_T5_SHAPE,
    SHAPE,
    START_ID,
    T5_SHAPE,
    RandomTokens,
    laid_out,
    name_of,
    random_samples,
    run_stage,
)
from tests.oracles.plain_dropout import factors

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.dropout import Dropout, dropout_keys
from dynapipe_hpc.models.family import StageOfFamily, family_of

RATE, SEED, ITERATION = 0.3, 5, 11
SAMPLES = {s.sample_id: s for s in random_samples(1, 5)}
each_shape = pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE, GATED_T5_SHAPE], ids=name_of)


def dropout(name: str = "here") -> Dropout:
    made = Dropout()
    made.set(RATE, SEED, name)
    return made


def test_a_mask_is_of_seed_place_iteration_sample_position_and_column() -> None:
    keys = dropout_keys(
        ITERATION, [[7, 2**40], [3]], {7: range(3), 2**40: range(2), 3: range(4)}, 6
    )
    values = torch.randn(2, 6, 9, dtype=torch.float64, generator=torch.manual_seed(1))
    found = dropout()(values, keys)
    first = [*((ITERATION, 7, i) for i in range(3)), *((ITERATION, 2**40, i) for i in range(2))]
    second = [(ITERATION, 3, i) for i in range(4)]
    for row, tokens in enumerate((first, second)):
        expected = factors(SEED, "here", RATE, [*tokens], 9) * values[row, : len(tokens)].numpy()
        np.testing.assert_allclose(found[row, : len(tokens)].numpy(), expected, rtol=1e-14)
    assert torch.equal(dropout()(values[..., 4:], keys, 4), found[..., 4:])


def whole(shape: ModelShape, rate: float) -> StageOfFamily:
    shape, layers = shape.model_copy(update={"dropout": rate}), range(shape.n_all_layers)
    return family_of(shape)(shape, layers, first=True, last=True, device=CPU)


def microbatch(shape: ModelShape) -> MicroBatch:
    return laid_out(list(SAMPLES.values()), Layout.PADDED, shape)


def tokens(iteration: int | None) -> IterationTokens:
    weights = dict.fromkeys(SAMPLES, 0.1)
    return IterationTokens(SAMPLES, weights, RandomTokens(), START_ID, iteration=iteration)


@each_shape
def test_there_is_none_outside_training(shape: ModelShape) -> None:
    losses = {}
    for rate, iteration in ((0.0, 1), (RATE, None), (RATE, 1), (RATE, 2)):
        module = whole(shape, rate)
        batch = module.collate(microbatch(shape), tokens(iteration))
        losses[rate, iteration] = run_stage(module, None, batch).item()
    assert losses[RATE, None] == losses[0.0, 1]
    assert len(set(losses.values())) == 3
