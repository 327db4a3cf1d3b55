"""The gradients of a module in one buffer."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dynapipe_hpc.data.errors import RunError


class DivergedError(RunError):
    """Training has left the range of numbers."""


class FlatGradients:
    """One contiguous buffer of which every parameter's gradient is a view.

    So gradients are added up over replicas, measured, scaled and cleared in one call each.

    Attributes:
        flat: Shape (n_weights,), parameters in the module's order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Allocates the gradients of parameters of one dtype and points `.grad` at them."""
        held = list(parameters)
        sizes = [parameter.numel() for parameter in held]
        self.flat = torch.zeros(sum(sizes), dtype=held[0].dtype, device=held[0].device)
        for parameter, view in zip(held, torch.split(self.flat, sizes), strict=True):
            parameter.grad = view.view_as(parameter)

    def square_sum(self) -> float:
        """The sum of squares, accumulated in float64."""
        norm: Tensor = torch.linalg.vector_norm(self.flat, dtype=torch.float64)
        return norm.item() ** 2

    def clip(self, norm: float, limit: float) -> None:
        """Scales gradients down so that `norm`, the whole model's, becomes at most `limit`."""
        if norm > limit:
            self.flat.mul_(limit / norm)

    def clear(self) -> None:
        """Starts the next sum at zero."""
        self.flat.zero_()


def norm_of(square_sum: float, step: int) -> float:
    """The norm of the whole model's gradient.

    Raises:
        DivergedError: It is not a finite number.
    """
    if not math.isfinite(square_sum):
        raise DivergedError(
            f"the gradient's norm is {square_sum} in step {step}: training diverged; lower "
            "training.learning_rate or raise training.warmup_iterations"
        )
    return math.sqrt(square_sum)
