"""Split backward pass of linear maps: gradients of weights that are computed later.

Gradients of 16-bit weights are added to float32 sums by the product that computes them.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241, section 2.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def add_up_in(weight: Tensor, total: Tensor) -> None:
    """Lets `weight_gradient` add to a float32 tensor of the weight's shape, where it can."""
    weight.float32_sum = total  # type: ignore[attr-defined]


def weight_gradient(weight: Tensor, values: Tensor, gradient: Tensor) -> Tensor | None:
    """Gradient of a linear map's weight, shape (outputs, inputs); None if already added to its sum.

    Autograd calls the hooks of a weight in either case.
    """
    factors = gradient.flatten(0, -2).t(), values.flatten(0, -2)
    if not adds_in_product(weight):
        return torch.mm(*factors)
    add_product(weight.float32_sum, *factors)  # type: ignore[attr-defined]
    return None


def adds_in_product(weight: Tensor) -> bool:
    """Whether the matrix product of a gradient can add straight into its float32 sum."""
    return hasattr(weight, "float32_sum") and _can_add(weight.device, weight.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds the unrounded product of two 16-bit matrices to a float32 matrix."""
    torch.addmm(total, left, right, torch.float32, out=total)


@cache
def _can_add(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `add_product` runs; torch supports it on GPUs, with checks that vary by version."""
    if device.type != "cuda":
        return False
    factor = torch.zeros(8, 8, dtype=dtype, device=device)
    try:
        add_product(factor.float(), factor, factor)
    except (RuntimeError, TypeError):
        return False
    return True


def run_backward(output: Tensor, gradient: Tensor | None) -> None:
    """Runs the backward pass of `output` from its gradient; without a gradient, only the hooks.

    `torch.autograd.backward` does the same, but with a gradient it imports torch's symbolic shapes,
    which takes a second of processor time at the start of every rank.

    Raises `ValueError`: The gradient has another shape than the output. Torch would sum it to the
    output's shape if possible.
    """
    if gradient is not None and gradient.shape != output.shape:
        raise ValueError(f"gradient of shape {gradient.shape} for output of {output.shape}")
    _Seed.apply(output, gradient).backward()  # type: ignore[no-untyped-call]


class _Seed(Function):
    """Scalar whose gradient with respect to a tensor is given."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor | None) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, None]:
        return ctx.gradient, None


class DeferredWeights:
    """Queue of the weight gradients that the backward pass of a micro-batch leaves for later.

    For every waiting gradient, it keeps the two tensors whose product the gradient is: the input of
    a map and the gradient of the map's output.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Tensor, Tensor, Tensor]] = deque()

    @property
    def weights(self) -> list[Tensor]:
        """Weights whose gradients wait; a backward pass defers each weight's gradient only once."""
        return [weight for weight, *_ in self._waiting]

    @property
    def kept(self) -> list[Tensor]:
        """Tensors that wait for `accumulate`."""
        return [tensor for _, *factors in self._waiting for tensor in factors]

    def defer(self, weight: Tensor, values: Tensor, gradient: Tensor) -> None:
        self._waiting.append((weight, values, gradient))

    def accumulate(self) -> None:
        """Accumulates the gradients in the order of the backward pass, and frees the queue.

        To hooks of the weights, each gradient looks like a backward pass of its own.
        """
        while self._waiting:
            weight, values, gradient = self._waiting.popleft()
            product = weight_gradient(weight, values, gradient)
            del values, gradient  # before the next is computed
            run_backward(weight, product)


_QUEUE: ContextVar[DeferredWeights | None] = ContextVar("deferred weights", default=None)


@contextmanager
def deferring(queue: DeferredWeights | None) -> Iterator[None]:
    """Lets linear maps inside the block defer their weight gradients; with None, they do not."""
    outer = _QUEUE.set(queue)
    try:
        yield
    finally:
        _QUEUE.reset(outer)


def linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear map, as `torch.nn.functional.linear`; inside `deferring`, its gradients are split.

    The backward pass then computes gradients of the input and the bias, by the same products as
    torch. Frozen weights have no gradients; if the input needs no gradient, the weight's gradient
    does not wait.
    """
    queue = _QUEUE.get() if weight.requires_grad and values.requires_grad else None
    of_weight = partial(queue.defer if queue else weight_gradient, weight)
    if queue is not None:
        # If the weight were an input, autograd would call its hooks before there is a gradient.
        weight = weight.detach()
    elif not adds_in_product(weight):
        return functional.linear(values, weight, bias)
    output: Tensor = _OwnLinear.apply(values, weight, bias, of_weight)  # type: ignore[no-untyped-call]
    return output


class _OwnLinear(Function):
    """Linear map; `of_weight` maps input and output's gradient to the weight's gradient or None."""

    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_weight: Callable[[Tensor, Tensor], Tensor | None],
    ) -> Tensor:
        context.save_for_backward(values, weight)
        context.has_bias, context.of_weight = bias is not None, of_weight
        return functional.linear(values, weight, bias)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = context.saved_tensors
        (gradient,) = gradients
        # Detached, as a leaf would keep its own gradient, too.
        grad_weight = context.of_weight(values.detach(), gradient)
        rows = gradient.flatten(0, -2)
        grad_bias = rows.sum(0) if context.has_bias else None
        return (rows @ weight).view_as(values), grad_weight, grad_bias, None
