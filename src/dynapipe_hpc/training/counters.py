"""Counters of an optimizer, equal on all ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the optimizer: the part of the state that is not per weight.

    `n_updates`: Number of steps that were not skipped, as AdamW counts them. `n_skipped_steps`:
    Number of consecutive skipped steps that a smaller scale would not have helped.
    """

    n_steps: int
    n_updates: int
    loss_scale: float
    n_scaled_steps: int
    n_skipped_steps: int
