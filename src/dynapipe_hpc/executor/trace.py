"""Trace of an iteration: times, loss and memory that were measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IterationTrace:
    """Measurements of one rank in one iteration.

    `loss`: Part of the iteration's loss that this stage computed; the parts of stages add up.
    `peak_has_transient`: Whether `peak_bytes` includes memory that passes need only while they run.
    `preferences`: Sums over the preference pairs of this stage's micro-batches, see
    `PreferenceNumbers`; empty if no pairs are trained.
    """

    iteration: int
    rank: int
    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
    loss: float
    gradient_norm: float
    learning_rate: float
    peak_bytes: int
    peak_has_transient: bool = False
    preferences: tuple[float, ...] = ()
