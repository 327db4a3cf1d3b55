"""Boundaries of stages where their shards divide the tokens of the residual stream."""

from collections.abc import Callable

import pytest
import torch
from tests.examples.training_case import SHAPE, T5_SHAPE
from tests.jobs.local_shards import on_shards
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.models.attention_context import WHOLE_ROWS
from dynapipe_hpc.models.collate import EncoderDecoderBatch, TokenBatch
from dynapipe_hpc.models.decoder import DecoderBatch
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.sharding.shards import Shards

ROWS, TOKENS, TARGETS, N_SHARDS = 3, 5, 4, 4  # 15 tokens are no multiple of 4
MICROBATCH = PaddedRows((0, 1, 2), TOKENS, target_tokens=TARGETS)
STAGES = [
    (SHAPE, range(1, 3), Boundary.ROWS, Boundary.ROWS),
    (T5_SHAPE, range(1, 2), Boundary.ROWS, Boundary.ROWS),
    (T5_SHAPE, range(2, 3), Boundary.ROWS, Boundary.ROWS),  # the end of the encoder
    (T5_SHAPE, range(2, 4), Boundary.ROWS, Boundary.PAIR),
    (T5_SHAPE, range(4, 5), Boundary.PAIR, Boundary.PAIR),
]


def drawn(*size: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(size, dtype=torch.float64, generator=stream)


def batch_of(shape: ModelShape) -> DecoderBatch | EncoderDecoderBatch:
    if shape.family == "gpt":
        return DecoderBatch((ROWS, TOKENS), WHOLE_ROWS, None)
    targets = TokenBatch(*[torch.arange(ROWS * TARGETS).view(ROWS, TARGETS)] * 4)
    inputs = torch.ones(ROWS, TOKENS, dtype=torch.int64)
    return EncoderDecoderBatch(None, True, inputs, torch.tensor([5, 2, 4]), targets)


def sides_of(boundary: Boundary, seed: int, width: int) -> list[Tensor]:
    """The whole tensors of which one that is handed over is made, one per side."""
    lengths = (TOKENS, TARGETS)[: 1 + boundary]
    return [drawn(ROWS, n, width, seed=seed + i) for i, n in enumerate(lengths)]


def of_shard(sides: list[Tensor], shard: int) -> Tensor:
    """Equal parts of the tokens of each side, numbered through all rows; then zeros."""
    parts = []
    for side in sides:
        tokens = side.flatten(0, 1)
        n_own = -(-len(tokens) // N_SHARDS)
        filled = torch.cat(
            [tokens, tokens.new_zeros(N_SHARDS * n_own - len(tokens), len(tokens[0]))]
        )
        parts.append(filled[shard * n_own : (shard + 1) * n_own])
    return torch.cat(parts)


def real_tokens(joined: list[Tensor], boundary: Boundary) -> list[Tensor]:
    """Tokens of each side, from what all shards hold, without what fills them up."""
    n_own = -(-ROWS * TOKENS // N_SHARDS)
    first = torch.cat([each[:n_own] for each in joined])[: ROWS * TOKENS]
    if boundary is Boundary.ROWS:
        return [first]
    return [first, torch.cat([each[n_own:] for each in joined])[: ROWS * TARGETS]]


@pytest.mark.parametrize(("shape", "layers", "before", "after"), STAGES)
def test_each_shard_hands_over_its_own_tokens_and_their_gradients(
    shape: ModelShape, layers: range, before: Boundary, after: Boundary
) -> None:
    received = sides_of(before, 1, shape.hidden_size)
    towards = sides_of(after, 5, shape.hidden_size)

    def passes(
        shards: Shards, form: Callable[[list[Tensor], int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        stage = family_of(shape)(
            shape, layers, first=False, last=False, shards=shards, dtype=torch.float64
        )
        activation = form(received, shards.shard).clone().requires_grad_()
        output = stage.run(activation, batch_of(shape), Recompute.NONE)
        torch.autograd.backward(output, form(towards, shards.shard))
        assert activation.grad is not None
        return output.detach(), activation.grad

    def whole(sides: list[Tensor], _: int) -> Tensor:
        return torch.cat(sides, 1)

    expected = on_shards(N_SHARDS, lambda shards: passes(shards, whole))[0]
    found = on_shards(N_SHARDS, lambda shards: passes(shards, of_shard), sequence_parallel=True)
    for i, boundary in enumerate((after, before)):
        joined = [each[i] for each in found]
        size = boundary.shape(MICROBATCH, shape.hidden_size, N_SHARDS)
        assert [each.shape for each in joined] == [size] * N_SHARDS
        lengths = [TOKENS, TARGETS][: 1 + boundary]
        for tokens, side in zip(
            real_tokens(joined, boundary), torch.split(expected[i], lengths, 1), strict=True
        ):
            torch.testing.assert_close(tokens, side.flatten(0, 1), rtol=1e-11, atol=1e-11)
