"""Maps, vocabulary and residual stream over shards compute what they do on one."""

from collections.abc import Callable

import pytest
import torch
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.sharded_linear import (
    ColumnLinear,
    RowLinear,
    TokenEmbedding,
    residual_stream,
)
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards, splits_of

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
