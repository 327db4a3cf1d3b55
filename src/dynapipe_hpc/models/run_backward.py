"""Backward pass from a tensor whose gradient is known."""

from typing import Any

from torch import Tensor
from torch.autograd import Function


def run_backward(output: Tensor, gradient: Tensor | None) -> None:
    """Runs the backward pass of `output` from its gradient; without one, only its hooks.

    `torch.autograd.backward` does so too, but given a gradient it imports torch's symbolic shapes,
    a second of processor time at the start of every rank.

    Raises:
        ValueError: The gradient has another shape. Where it could be summed to the output's, torch
            would do so.
    """
    if gradient is not None and gradient.shape != output.shape:
        raise ValueError(f"gradient of shape {gradient.shape} for output of {output.shape}")
    _Seed.apply(output, gradient).backward()  # type: ignore[no-untyped-call]


class _Seed(Function):
    """Scalar with a given gradient with respect to a tensor."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor | None) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, None]:
        return ctx.gradient, None
