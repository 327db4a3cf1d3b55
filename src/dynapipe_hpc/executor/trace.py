"""Trace of an iteration: times, loss and memory that were measured."""

from dataclasses import dataclass

from dynapipe_hpc.training.counters import StageReport


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTrace(StageReport):
    """Measurements of one rank in one iteration."""

    iteration: int
    rank: int
    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
