"""Summary of a run: throughput, padding, prediction errors and loss."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

from dynapipe_hpc.report.records import IterationRecord

MAX_KEPT = 1 << 15
N_WARM_UP = 3


def n_warm_up(n_iterations: int) -> int:
    """Number of warm-up iterations, not counted as steady: three, but at most a quarter."""
    return min(N_WARM_UP, n_iterations // 4)


@dataclass(slots=True)
class Totals:
    n_iterations: int = 0
    n_samples: int = 0
    n_skipped: int = 0
    waited_ms: float = 0.0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0

    def add(self, record: IterationRecord) -> None:
        self.n_iterations += 1
        self.n_samples += record.n_samples
        self.n_skipped += not math.isfinite(record.gradient_norm)
        self.waited_ms += record.waited_ms
        self.predicted_peak_bytes = max(self.predicted_peak_bytes, record.predicted_peak_bytes)
        self.measured_peak_bytes = max(self.measured_peak_bytes, record.measured_peak_bytes)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers; medians are over its steady iterations.

    Of a run of more than `MAX_KEPT` iterations every 2nd, 4th, ... is kept. Totals are over all
    iterations, `steady` over those after the warm-up; `ends_s` is the time spent in iterations up
    to the end of each kept one.
    """

    name: str
    totals: Totals
    steady: Totals
    kept: tuple[IterationRecord, ...]
    ends_s: tuple[float, ...]
    first: IterationRecord
    last: IterationRecord

    def typical(self, value: Callable[[IterationRecord], float]) -> float:
        """The median over the kept iterations after the warm-up."""
        return median(map(value, self.kept[n_warm_up(len(self.kept)) :]))

    @property
    def real_tokens_per_s(self) -> float:
        return self.typical(lambda r: r.tokens_per_s)

    @property
    def padding_efficiency(self) -> float:
        return self.typical(lambda r: r.padding_efficiency)

    @property
    def measured_ms(self) -> float:
        return self.typical(lambda r: r.measured_ms)

    @property
    def time_error(self) -> float:
        return self.typical(lambda r: relative_difference(r.predicted_ms, r.measured_ms))

    @property
    def peak_error(self) -> float:
        """NaN where memory was not measured."""
        return self.typical(
            lambda r: relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes)
        )


def summarise(name: str, records: Iterable[IterationRecord]) -> RunSummary:
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
    return RunSummary(name, totals, steady, of_kept, ends_s, start[0], last)


def relative_difference(value: float, reference: float) -> float:
    """|value - reference| / |reference|; NaN where the reference is 0."""
    return abs(value - reference) / abs(reference) if reference else math.nan


def largest_loss_difference(
    run: Sequence[IterationRecord], reference: Sequence[IterationRecord]
) -> float:
    """Largest relative difference of loss at the same iterations; NaN without any, or if one is."""
    expected = {record.iteration: record.loss for record in reference}
    differences = [
        relative_difference(record.loss, expected[record.iteration])
        for record in run
        if record.iteration in expected
    ]
    if not differences or any(map(math.isnan, differences)):
        return math.nan
    return max(differences)


NOTHING = "–"


def percent(share: float) -> str:
    """A share in per cent with one digit; a dash for NaN."""
    return NOTHING if math.isnan(share) else f"{100 * share:.1f}"
