"""What the optimizers of all ranks count alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """The state of an optimizer that is not per weight.

    Attributes:
        n_steps: Steps so far, which the learning rate follows.
        n_updates: Those that were not left out, which AdamW counts.
        loss_scale: What losses are multiplied by.
        n_scaled_steps: Steps since the loss scale changed.
        n_skipped_steps: Steps left out in a row where a smaller scale would not help.
    """

    n_steps: int
    n_updates: int
    loss_scale: float
    n_scaled_steps: int
    n_skipped_steps: int
