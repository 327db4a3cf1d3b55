"""Gradients of weights that are added to float32 sums within their product."""

from collections.abc import Callable

import pytest
import torch
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor, nn

from dynapipe_hpc.models import deferred_weights
from dynapipe_hpc.models.deferred_weights import (
    DeferredWeights,
    add_up_in,
    deferring,
    linear,
)
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, residual_stream
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.training.flat_parameters import FlatParameters

INPUTS, OUTPUTS = 24, 16
ROWS, TOKENS = 3, 5


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a processor do what torch has for GPUs only."""

    def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
        assert left.dtype == right.dtype == torch.bfloat16
        total += left.float() @ right.float()

    monkeypatch.setattr(deferred_weights, "_can_add", lambda _, dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(deferred_weights, "add_product", add_product)


def drawn(*sizes: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=stream).bfloat16()


def at_once(values: Tensor, weight: Tensor, towards: Tensor) -> None:
    torch.autograd.backward(linear(values, weight), towards)


def deferred(values: Tensor, weight: Tensor, towards: Tensor) -> None:
    queue = DeferredWeights()
    with deferring(queue):
        output = linear(values, weight)
    torch.autograd.backward(output, towards)
    queue.accumulate()


def again(values: Tensor, weight: Tensor, towards: Tensor) -> None:
    torch.autograd.backward(recomputed(lambda x: linear(x, weight), values), towards)


on_a_gpu = pytest.mark.usefixtures("as_on_a_gpu")


@on_a_gpu
@pytest.mark.parametrize("way", [at_once, deferred, again])
def test_products_are_added_without_being_rounded(
    way: Callable[[Tensor, Tensor, Tensor], None],
) -> None:
    weight = nn.Parameter(drawn(OUTPUTS, INPUTS, seed=1))
    total, seen = torch.ones(OUTPUTS, INPUTS), []
    add_up_in(weight, total)
    weight.register_post_accumulate_grad_hook(lambda _: seen.append(total.clone()))  # type: ignore[no-untyped-call]
    values = drawn(ROWS, TOKENS, INPUTS, seed=2).requires_grad_()
    towards = drawn(ROWS, TOKENS, OUTPUTS, seed=3)
    way(values, weight, towards)
    expected = 1 + torch.einsum("rto,rti->oi", towards.double(), values.detach().double())
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    assert weight.grad is None
    assert len(seen) == 1 and torch.equal(seen[0], total)  # hooks see the sum
    to_values = towards.flatten(0, 1) @ weight.detach()
    assert values.grad is not None and torch.equal(values.grad.flatten(0, 1), to_values)


@on_a_gpu
def test_so_are_those_of_tokens_that_are_spread_over_shards() -> None:
    whole = drawn(ROWS, TOKENS, INPUTS, seed=2)
    towards = drawn(ROWS, TOKENS, OUTPUTS, seed=3)

    def of_shard(shards: Shards) -> tuple[Tensor, Tensor | None]:
        each = ColumnLinear(INPUTS, OUTPUTS, shards, bias=False).bfloat16()
        with torch.no_grad():
            each.weight.zero_()
        flat = FlatParameters(each)
        stream = residual_stream(shards, ROWS, TOKENS)
        own = of_stream(stream, whole).clone().requires_grad_()
        (mapped,) = stream.map(own, each)
        n_own = OUTPUTS // shards.n_shards
        torch.autograd.backward(mapped, towards.narrow(2, shards.shard * n_own, n_own))
        return flat.gradients[: each.weight.numel()].view_as(each.weight), each.weight.grad

    found = on_shards(2, of_shard, sequence_parallel=True)
    expected = torch.einsum("rto,rti->oi", towards.double(), whole.double())
    total = torch.cat([gradient for gradient, _ in found]).double()
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    assert [of_autograd for _, of_autograd in found] == [None, None]
