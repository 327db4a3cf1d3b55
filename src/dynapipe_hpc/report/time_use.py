"""Use of the time of a run's ranks, over its traced iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.rank_time import Use, rank_time
from dynapipe_hpc.report.timeline import IterationTimeline


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Time of the average rank by use, in the mean of some iterations.

    They are of the warm-up if none was traced after it.
    """

    times_ms: Mapping[Use, float]
    real_tokens: float
    n_iterations: int
    in_warm_up: bool

    @property
    def iteration_ms(self) -> float:
        """Time of an iteration."""
        return sum(self.times_ms.values())

    def share(self, use: Use) -> float:
        """Fraction of all time."""
        return self.times_ms[use] / self.iteration_ms


def time_use(
    records: Sequence[IterationRecord],
    n_warm_up: int,
    timelines: Mapping[int, IterationTimeline],
    n_stages: int,
) -> TimeUse | None:
    """The use of time in the traced iterations after the warm-up; if there is none, in all traced.

    None if no iteration was traced, or the trace does not tell what passes computed.
    """
    traced = [record for record in records if record.iteration in timelines]
    steady = [each for each in traced if each.iteration - records[0].iteration >= n_warm_up]
    pairs = [
        (r, rank_time(timelines[r.iteration], r.measured_ms, r.waited_ms, n_stages))
        for r in steady or traced
    ]
    known = [(record, times_ms) for record, times_ms in pairs if times_ms is not None]
    if not known:
        return None
    return TimeUse(
        times_ms={use: fmean(times_ms[use] for _, times_ms in known) for use in Use},
        real_tokens=fmean(record.real_tokens for record, _ in known),
        n_iterations=len(known),
        in_warm_up=not steady,
    )
