"""Numbers that an optimizer counts, and that a stage reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the optimizer: the part of the state that is not per weight.

    `n_updates`: Number of steps that were not skipped, as AdamW counts them. `n_skipped_steps`:
    Number of consecutive skipped steps for which a smaller scale would not have helped.
    """

    n_steps: int
    n_updates: int
    loss_scale: float
    n_scaled_steps: int
    n_skipped_steps: int


@dataclass(frozen=True, slots=True)
class StageReport:
    """Report of a stage about an iteration.

    `peak_has_transient`: Whether `peak_bytes` includes memory that passes need only while they run.
    `preferences`: Sums over the preference pairs of this stage's micro-batches, see
    `PreferenceNumbers`; empty if no pairs are trained.
    """

    loss: float  # part of the iteration's loss that this stage computed; the parts of stages add up
    gradient_norm: float
    learning_rate: float
    peak_bytes: int
    peak_has_transient: bool = False
    preferences: tuple[float, ...] = ()
