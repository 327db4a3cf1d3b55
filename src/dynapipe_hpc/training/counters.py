"""Numbers that an optimizer counts, and that a stage reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the optimizer: the part of the state that is not per weight."""

    n_steps: int
    n_updates: int  # steps that were not skipped, as AdamW counts them
    loss_scale: float
    n_scaled_steps: int
    n_skipped_steps: int  # in a row, for which a smaller scale would not have helped


@dataclass(frozen=True, slots=True)
class StageReport:
    """Report of a stage about an iteration."""

    loss: float  # part of the iteration's loss that this stage computed; the parts of stages add up
    gradient_norm: float
    learning_rate: float
    peak_bytes: int
    peak_has_transient: bool = False  # whether the peak includes memory of running passes
    preferences: tuple[float, ...] = ()  # sums as in `PreferenceNumbers`; empty without pairs
