"""Maps, vocabulary and residual stream over shards compute what they do on one."""

from collections.abc import Callable

import pytest
import torch
from tests.examples.training_case import SHAPE, T5_SHAPE
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.models.batch import Batch, Labels
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.sharded_linear import (
    ColumnLinear,
    RowLinear,
    TokenEmbedding,
    residual_stream,
)
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards
from dynapipe_hpc.models.sharding.split import splits_of

SIZES = [(1, 1), (2, 3), (3, 5), (4, 4)]  # fewer tokens than shards, and numbers of any remainder
Run = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


class Pair(nn.Module):
    """Two maps with a bend between them."""

    def __init__(self, shards: Shards, *, bias: bool) -> None:
        super().__init__()
        self.inner = ColumnLinear(8, 12, shards, bias=bias)
        self.output = RowLinear(12, 8, shards, bias=bias)
        self._shards = shards

    def forward(self, values: Tensor) -> Tensor:
        stream = residual_stream(self._shards, *values.shape[:2])
        (inner,) = stream.map(of_stream(stream, values), self.inner)
        return stream.end(self.output(functional.gelu(inner), stream))


def pair(shards: Shards, *, bias: bool) -> Pair:
    """Weights as if drawn whole."""
    maps = Pair(shards, bias=bias)
    splits = splits_of(maps)
    stream = torch.Generator().manual_seed(3)  # threads share the default one
    for name, weight in maps.double().named_parameters():
        split = splits.get(name)
        shape = weight.shape if split is None else split.whole_shape(weight.shape)
        whole = torch.randn(shape, dtype=torch.float64, generator=stream)
        weight.data.copy_(whole if split is None else split.part_of(whole))
    return maps


def drawn(*size: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)  # threads share the default one
    return torch.randn(size, dtype=torch.float64, generator=stream)


def passed(
    shards: Shards, size: tuple[int, int], run: Run, *, bias: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, gradient of the input, gradients of the weights."""
    maps, values = pair(shards, bias=bias), drawn(*size, 8, seed=1).requires_grad_()
    output = run(maps, values)
    output.backward(drawn(*size, 8, seed=2))  # type: ignore[no-untyped-call]
    assert values.grad is not None
    gradients = {n: p.grad for n, p in maps.named_parameters() if p.grad is not None}
    return output.detach(), values.grad, gradients


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n_shards", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("run", [lambda maps, values: maps(values), recomputed])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_outputs_and_gradients_are_those_of_one_shard(
    size: tuple[int, int], n_shards: int, bias: bool, run: Run, sequence_parallel: bool
) -> None:
    def work(shards: Shards) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        splits = splits_of(pair(shards, bias=bias))
        parts = {n: splits[n].part_of(g) if n in splits else g for n, g in expected[2].items()}
        return *passed(shards, size, run, bias=bias), parts

    expected = passed(ONE_SHARD, size, run, bias=bias)
    found = on_shards(n_shards, work, sequence_parallel=sequence_parallel)
    if sequence_parallel and bias:  # which every shard has added to its own tokens
        total = torch.stack([gradients["output.bias"] for _, _, gradients, _ in found]).sum(0)
        for _, _, gradients, _ in found:
            gradients["output.bias"] = total
    if sequence_parallel:  # each has that of its own tokens
        total = torch.stack([gradient for _, gradient, _, _ in found]).sum(0)
        found = [(output, total, own, parts) for output, _, own, parts in found]
    for output, gradient, gradients, parts in found:
        torch.testing.assert_close(output, expected[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, expected[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients, parts, rtol=1e-12, atol=1e-12)
        assert torch.equal(output, found[0][0])
        assert torch.equal(gradient, found[0][1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n_shards", [2, 3, 4])
def test_own_tokens_are_no_copies(size: tuple[int, int], n_shards: int) -> None:
    def work(shards: Shards) -> tuple[bool, bool]:
        values = drawn(*size, 4, seed=1)
        hidden = of_stream(residual_stream(shards, *size), values)
        is_view = hidden.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        return is_view, (shards.shard + 1) * len(hidden) <= values[..., 0].numel()

    for is_view, is_full in on_shards(n_shards, work, sequence_parallel=True):
        assert is_view == is_full


VOCABULARY = 12
TABLE = torch.randn(VOCABULARY, 5, generator=torch.manual_seed(1))
TOKENS = torch.randint(0, VOCABULARY, (3, 7), generator=torch.manual_seed(2))


@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_every_shard_has_the_vectors_of_all_ids(n_shards: int) -> None:
    def work(shards: Shards) -> tuple[Tensor, Tensor]:
        embedding = TokenEmbedding(VOCABULARY, 5, shards)
        embedding.weight.data.copy_(embedding.splits["weight"].part_of(TABLE))
        found = embedding(TOKENS, residual_stream(shards, *TOKENS.shape))
        found.sum().backward()
        assert embedding.weight.grad is not None
        return found.detach(), embedding.weight.grad

    of_shards = on_shards(n_shards, work)
    assert all(torch.equal(found, TABLE[TOKENS]) for found, _ in of_shards)
    counts = torch.cat([gradient for _, gradient in of_shards])[:, 0]
    assert counts.tolist() == torch.bincount(TOKENS.flatten(), minlength=VOCABULARY).tolist()


ROWS, N_TOKENS, TARGETS, N_SHARDS = 3, 5, 4, 4  # 15 tokens are no multiple of 4
MICROBATCH = PaddedRows((0, 1, 2), N_TOKENS, target_tokens=TARGETS)
STAGES = [
    (SHAPE, range(1, 3), Boundary.ROWS, Boundary.ROWS),
    (T5_SHAPE, range(1, 2), Boundary.ROWS, Boundary.ROWS),
    (T5_SHAPE, range(2, 3), Boundary.ROWS, Boundary.ROWS),  # the end of the encoder
    (T5_SHAPE, range(2, 4), Boundary.ROWS, Boundary.PAIR),
    (T5_SHAPE, range(4, 5), Boundary.PAIR, Boundary.PAIR),
]


def batch_of(shape: ModelShape) -> Batch:
    if shape.family == "gpt":
        return Batch((ROWS, N_TOKENS))
    inputs = torch.ones(ROWS, N_TOKENS, dtype=torch.int64)
    source = Batch((ROWS, N_TOKENS), None, inputs, lengths=torch.tensor([5, 2, 4]))
    targets = torch.arange(ROWS * TARGETS).view(ROWS, TARGETS)
    labels = Labels(targets, targets, targets)
    return Batch((ROWS, TARGETS), None, targets, labels, source=source)


def sides_of(boundary: Boundary, seed: int, width: int) -> list[Tensor]:
    """The whole tensors of which one that is handed over is made, one per side."""
    lengths = (N_TOKENS, TARGETS)[: 1 + boundary]
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
    n_own = -(-ROWS * N_TOKENS // N_SHARDS)
    first = torch.cat([each[:n_own] for each in joined])[: ROWS * N_TOKENS]
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
        lengths = [N_TOKENS, TARGETS][: 1 + boundary]
        for tokens, side in zip(
            real_tokens(joined, boundary), torch.split(expected[i], lengths, 1), strict=True
        ):
            torch.testing.assert_close(tokens, side.flatten(0, 1), rtol=1e-11, atol=1e-11)
