"""Keeps gradients within the range of numbers, or says that it cannot."""

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
        n_skipped: Steps left out in a row where a smaller scale would not help.
    """

    def __init__(self, dtype: torch.dtype, may_skip: int = 0) -> None:
        """Scales the losses of a model that computes in `dtype`.

        Args:
            dtype: Of the model.
            may_skip: Steps in a row that may be left out where a smaller scale would not help.
        """
        self._is_dynamic = dtype is torch.float16
        self.value = FIRST_SCALE if self._is_dynamic else 1.0
        self._may_skip = may_skip
        self.n_steps = 0
        self.n_skipped = 0

    def shrink(self, norm: float, step: int) -> None:
        """Reacts to a gradient that is not finite, whose step is left out.

        Raises:
            DivergedError: A smaller scale would not help, and no further step may be skipped.
        """
        if self.value > 1:
            self.value /= FACTOR
            self.n_steps = 0
        elif self.n_skipped < self._may_skip:
            self.n_skipped += 1
        else:
            raise DivergedError(
                f"the gradient's norm is {norm} in step {step}{self._after}: training diverged; "
                "lower training.learning_rate or raise training.warmup_iterations; if single "
                "batches are at fault, let training.max_skipped_updates be "
                f"more than {self._may_skip}"
            )

    @property
    def _after(self) -> str:
        return f", after {self.n_skipped} updates left out" if self.n_skipped else ""

    def count_step(self) -> None:
        """Notes a step; after many the scale may grow."""
        self.n_steps += 1
        self.n_skipped = 0
        if self._is_dynamic and self.n_steps == STEPS_TO_GROW:
            self.value *= FACTOR
            self.n_steps = 0
