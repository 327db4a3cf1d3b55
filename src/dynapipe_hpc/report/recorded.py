"""Recorded iterations of a run, in memory that does not grow with their number."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

from dynapipe_hpc.report.iteration_record import IterationRecord

MAX_KEPT = 1 << 15
N_WARM_UP = 3


def n_warm_up(n_iterations: int) -> int:
    """Number of warm-up iterations, not counted as steady: three, but at most a quarter."""
    return min(N_WARM_UP, n_iterations // 4)


@dataclass(slots=True)
class Totals:
    """Sums and maxima over iterations."""

    n_iterations: int = 0
    n_samples: int = 0
    n_skipped: int = 0
    waited_ms: float = 0.0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0

    def add(self, record: IterationRecord) -> None:
        """Adds an iteration."""
        self.n_iterations += 1
        self.n_samples += record.n_samples
        self.n_skipped += not math.isfinite(record.gradient_norm)
        self.waited_ms += record.waited_ms
        self.predicted_peak_bytes = max(self.predicted_peak_bytes, record.predicted_peak_bytes)
        self.measured_peak_bytes = max(self.measured_peak_bytes, record.measured_peak_bytes)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Iterations of a run, thinned to every 2nd, 4th, ... if there are more than `MAX_KEPT`.

    Totals are over all iterations, `steady` over those after the warm-up; `ends_s` is the time
    spent in iterations up to the end of each kept one.
    """

    totals: Totals
    steady: Totals
    kept: tuple[IterationRecord, ...]
    ends_s: tuple[float, ...]
    first: IterationRecord
    last: IterationRecord

    @property
    def kept_steady(self) -> tuple[IterationRecord, ...]:
        """The kept iterations after the warm-up."""
        return self.kept[n_warm_up(len(self.kept)) :]


def read_recorded(records: Iterable[IterationRecord]) -> Recorded:
    """Reads iterations, at least one, in ascending order."""
    remaining = iter(records)
    start = list(islice(remaining, 4 * N_WARM_UP))
    totals, steady, end_s, stride = Totals(), Totals(), 0.0, 1
    kept: list[tuple[IterationRecord, float]] = []
    for k, record in enumerate(chain(start, remaining)):
        totals.add(record)
        if k >= n_warm_up(len(start)):
            steady.add(record)
        end_s += record.measured_ms / 1e3
        # By iteration number, so that the same iterations of two runs are kept.
        if record.iteration % stride == 0:
            kept.append((record, end_s))
        if len(kept) > MAX_KEPT:
            stride *= 2
            kept = [kept[0], *(each for each in kept[1:] if each[0].iteration % stride == 0)]
        last = record
    of_kept, ends_s = zip(*kept, strict=True)
    return Recorded(totals, steady, of_kept, ends_s, start[0], last)
