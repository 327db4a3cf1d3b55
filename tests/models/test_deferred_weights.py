"""Gradients of weights that are computed when they are asked for are the same to the last bit."""

import gc

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring, linear
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.recompute import recomputed


def drawn(*sizes: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=stream, dtype=torch.float64).to(dtype).requires_grad_()


def gradient_of(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [(3, 5), (1, 7), (15,)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_both_halves_give_the_bits_of_the_whole(
    dtype: torch.dtype, rows: tuple[int, ...], has_bias: bool
) -> None:
    def parts() -> tuple[Tensor, Tensor, Tensor | None]:
        bias = drawn(6, seed=3, dtype=dtype) if has_bias else None
        return drawn(*rows, 8, seed=1, dtype=dtype), drawn(6, 8, seed=2, dtype=dtype), bias

    towards = drawn(*rows, 6, seed=4, dtype=dtype).detach()
    whole, split, queue = parts(), parts(), DeferredWeights()
    expected = functional.linear(*whole)
    with deferring(queue):
        output = linear(*split)
    assert torch.equal(output, expected)
    torch.autograd.backward([expected, output], [towards, towards])
    assert split[1].grad is None
    queue.accumulate()
    for found, wanted in zip(map(gradient_of, split), map(gradient_of, whole), strict=True):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert torch.equal(found, wanted)


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


def test_a_frozen_weight_has_nothing_to_defer() -> None:
    frozen, trained = (drawn(4, 4, seed=i) for i in (1, 2))
    frozen.requires_grad_(False)
    queue, values = DeferredWeights(), drawn(2, 4, seed=9)
    with deferring(queue):
        output = linear(linear(values, frozen), trained)
    torch.autograd.backward(output.sum())
    assert values.grad is not None
    assert [weight is trained for weight in queue.weights] == [True]
    queue.accumulate()
    assert frozen.grad is None


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
