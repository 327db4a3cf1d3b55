"""Loss scaling: keeps gradients within the range of their type, or reports divergence."""

import torch

from dynapipe_hpc.data.errors import RunError

FIRST_SCALE = 2.0**16
FACTOR = 2.0
STEPS_TO_GROW = 1000


class DivergedError(RunError):
    """Training has diverged: a gradient is not finite."""


class LossScale:
    """Loss scale: the factor of a loss before its backward pass.

    Gradients in float16 underflow more easily than in other types. With float16 the scale is
    halved when a gradient overflows, and doubled after many steps without overflow; with other
    types it is one. All ranks see the same norms, so they hold the same scale.

    Attributes:
        value: Current scale, a power of two, so that scaling does not round.
        n_steps: Number of steps since it last changed.
        n_skipped: Number of consecutive skipped steps that a smaller scale would not have helped.
    """

    def __init__(self, dtype: torch.dtype, may_skip: int = 0) -> None:
        """Starts the scale for a model that computes in `dtype`."""
        self._is_dynamic = dtype is torch.float16
        self.value = FIRST_SCALE if self._is_dynamic else 1.0
        self._may_skip = may_skip
        self.n_steps = 0
        self.n_skipped = 0

    def shrink(self, norm: float, step: int) -> None:
        """Reacts to a gradient that is not finite, whose step is skipped.

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
                "batches are the cause, set training.max_skipped_updates to "
                f"more than {self._may_skip}"
            )

    @property
    def _after(self) -> str:
        return f", after {self.n_skipped} skipped updates" if self.n_skipped else ""

    def count_step(self) -> None:
        """Counts a successful step; after many of them the scale may grow."""
        self.n_steps += 1
        self.n_skipped = 0
        if self._is_dynamic and self.n_steps == STEPS_TO_GROW:
            self.value *= FACTOR
            self.n_steps = 0
