"""Gradients of weights that wait, and that are added up in float32."""

import gc
from collections.abc import Callable

import pytest
import torch
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor, nn

from dynapipe_hpc.models import deferred_weights
from dynapipe_hpc.models.deferred_weights import DeferredWeights, add_up_in, deferring, linear
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, residual_stream
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.training.flat_parameters import FlatParameters


def drawn(*sizes: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=stream, dtype=torch.float64).requires_grad_()


def drawn_16(*sizes: int, seed: int) -> Tensor:
    return drawn(*sizes, seed=seed).detach().bfloat16()


def test_gradients_add_up_in_the_order_of_the_backward_pass_and_call_hooks_once() -> None:
    weights = [drawn(4, 4, seed=i) for i in (1, 2, 3)]
    sums = [torch.ones(4, 4, dtype=torch.float64) for _ in weights]
    order: list[int] = []
    for i, (weight, total) in enumerate(zip(weights, sums, strict=True)):
        weight.grad = total
        weight.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i))  # type: ignore[no-untyped-call]
    queue, values = DeferredWeights(), drawn(2, 4, seed=4)
    with deferring(queue):
        for weight in weights:
            values = linear(values, weight)
    torch.autograd.backward(values.sum())
    assert order == []
    assert all(
        found is weight for found, weight in zip(queue.weights, reversed(weights), strict=True)
    )
    queue.accumulate()
    assert order == [2, 1, 0]
    for weight, total in zip(weights, sums, strict=True):
        assert weight.grad is total  # where optimizers expect it
        assert not torch.equal(total, torch.ones(4, 4, dtype=torch.float64))


def test_only_what_runs_inside_is_deferred_and_nothing_that_is_recomputed() -> None:
    first, inner, again, last, after = (drawn(4, 4, seed=i) for i in range(5))
    queue, values = DeferredWeights(), drawn(2, 4, seed=9)
    with deferring(queue):
        values = linear(values, first)
        with deferring(None):
            values = linear(values, inner)
        values = recomputed(lambda x: linear(x, again).square(), values)
        values = linear(values, last)
    values = linear(values, after)
    torch.autograd.backward(values.sum())
    assert [weight is first for weight in queue.weights] == [False, True]
    assert first.grad is None
    assert last.grad is None
    assert all(weight.grad is not None for weight in (inner, again, after))


def test_the_first_half_frees_all_but_the_factors_and_the_second_frees_them_one_by_one() -> None:
    first, second = (drawn(4, 4, seed=i) for i in (1, 2))
    first.grad, second.grad = torch.zeros_like(first), torch.zeros_like(second)
    received, towards = drawn(2, 4, seed=4).detach(), drawn(2, 4, seed=5).detach()
    queue, found = DeferredWeights(), []
    tensor_bytes, weight_bytes = 2 * 4 * 8, 4 * 4 * 8
    scalar_bytes = 2 * 8  # the number that a pass starts from, and its gradient

    def run() -> None:
        values = received.clone().requires_grad_()
        with deferring(queue):
            inner = linear(values, first)  # of which the first half needs the cosine
            output = linear(inner.sin(), second)
        torch.autograd.backward(output, towards)

    with LiveMemory():  # the first account in a process leaves cycles behind
        run()
        queue.accumulate()
    gc.disable()  # what only a collector could free would not count
    try:
        with LiveMemory() as live:
            # Adding to a gradient, its product and the factors are live: those of the second map
            # are gone when those of the first are multiplied.
            for weight in (second, first):
                weight.register_post_accumulate_grad_hook(lambda _: found.append(live.live_bytes))  # type: ignore[no-untyped-call]
            run()
            found.append(live.live_bytes)
            queue.accumulate()
            found.append(live.live_bytes)
    finally:
        gc.enable()
    # Received and its map's gradient; the sine, whose map's gradient was there before.
    waiting = 3 * tensor_bytes
    assert found == [
        waiting,
        waiting - tensor_bytes + weight_bytes + scalar_bytes,
        weight_bytes + scalar_bytes,
        0,
    ]


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
    weight = nn.Parameter(drawn_16(OUTPUTS, INPUTS, seed=1))
    total, seen = torch.ones(OUTPUTS, INPUTS), []
    add_up_in(weight, total)
    weight.register_post_accumulate_grad_hook(lambda _: seen.append(total.clone()))  # type: ignore[no-untyped-call]
    values = drawn_16(ROWS, TOKENS, INPUTS, seed=2).requires_grad_()
    towards = drawn_16(ROWS, TOKENS, OUTPUTS, seed=3)
    way(values, weight, towards)
    expected = 1 + torch.einsum("rto,rti->oi", towards.double(), values.detach().double())
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    assert weight.grad is None
    assert len(seen) == 1 and torch.equal(seen[0], total)  # hooks see the sum
    to_values = towards.flatten(0, 1) @ weight.detach()
    assert values.grad is not None and torch.equal(values.grad.flatten(0, 1), to_values)


@on_a_gpu
def test_so_are_those_of_tokens_that_are_spread_over_shards() -> None:
    whole = drawn_16(ROWS, TOKENS, INPUTS, seed=2)
    towards = drawn_16(ROWS, TOKENS, OUTPUTS, seed=3)

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
