"""Keeps gradients within the range of 16-bit numbers."""

import torch

from dynapipe_hpc.data.errors import RunError

FIRST_SCALE = 2.0**16
FACTOR = 2.0
STEPS_TO_GROW = 1000


class DivergedError(RunError):
    """Training has left the range of numbers."""


class LossScale:
    """The number that a loss is multiplied by before its backward pass.

    Gradients in float16 underflow where those in other types do not. There it is halved when
    a gradient overflows, and doubled after many steps without; elsewhere it is one. All ranks
    see the same norms, so they hold the same scale.

    Attributes:
        value: A power of two, so scaling does not round.
        n_steps: Steps since it last changed.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """Scales the losses of a model that computes in `dtype`."""
        self._is_dynamic = dtype is torch.float16
        self.value = FIRST_SCALE if self._is_dynamic else 1.0
        self.n_steps = 0

    def shrink(self, norm: float, step: int) -> None:
        """Reacts to a gradient that is not finite, whose step is left out.

        Raises:
            DivergedError: A smaller scale would not help.
        """
        if self.value <= 1:
            raise DivergedError(
                f"the gradient's norm is {norm} in step {step}: training diverged; lower "
                "training.learning_rate or raise training.warmup_iterations"
            )
        self.value /= FACTOR
        self.n_steps = 0

    def count_step(self) -> None:
        """Notes a step; after many the scale may grow."""
        self.n_steps += 1
        if self._is_dynamic and self.n_steps == STEPS_TO_GROW:
            self.value *= FACTOR
            self.n_steps = 0
