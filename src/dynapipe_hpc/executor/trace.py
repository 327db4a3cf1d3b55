"""Trace of an iteration: times, loss and memory that were measured."""

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Something that a rank did beside its instructions.

    Attributes:
        start_ms: Start, from the start of the iteration.
        end_ms: End, from the start of the iteration.
    """

    label: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class IterationTrace:
    """Measurements of one rank in one iteration.

    Attributes:
        rank: Rank, as plans number it.
        start_ms: Start of every instruction of the plan, from the start of the iteration.
        end_ms: End of every instruction, from the start of the iteration.
        loss: Part of the iteration's loss that this stage computed; the parts of stages add up.
        gradient_norm: Norm of the gradient of the complete model, before clipping.
        learning_rate: Learning rate of this iteration's step.
        peak_has_transient: Whether `peak_bytes` includes memory that passes need only while they
            run.
        planning: What the rank's planner did meanwhile.
        preferences: Sums over the preference pairs of this stage's micro-batches, see
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
    planning: tuple[Span, ...] = ()
    preferences: tuple[float, ...] = ()
