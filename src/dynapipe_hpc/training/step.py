"""Optimizer step, which the device may still be executing."""

import math
from dataclasses import dataclass

from torch import Tensor

from dynapipe_hpc.training.loss_scale import LossScale


@dataclass(frozen=True, slots=True)
class Step:
    """Result of an optimizer step.

    Attributes:
        gradient_norm: Norm of the complete model's gradient, before clipping; infinite or NaN if a
            gradient overflowed and the update was skipped.
        learning_rate: Learning rate of the update; 0 if it was skipped.
    """

    gradient_norm: float
    learning_rate: float


@dataclass(frozen=True, slots=True, eq=False)
class PendingStep:
    """Handle of an optimizer step that was started.

    Attributes:
        norm: Norm of the complete model's gradient, before clipping; a scalar on the device.
        learning_rate: Learning rate, unless the update is skipped.
        loss_scale: Loss scale, which depends on whether updates are skipped.
    """

    number: int
    norm: Tensor
    learning_rate: float
    loss_scale: LossScale

    def read(self) -> Step:
        """The result, for which this waits; to be called once, before the next backward pass.

        Raises:
            DivergedError: A gradient is not a finite number, no smaller loss scale can help, and
                no further update may be skipped.
        """
        norm = self.norm.item()
        if not math.isfinite(norm):
            self.loss_scale.shrink(norm, self.number)
            return Step(norm, 0.0)
        self.loss_scale.count_step()
        return Step(norm, self.learning_rate)
