"""Summary of a run: throughput, padding, prediction errors and loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.recorded import Recorded


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run; medians are over the steady iterations that `Recorded` keeps.

    Errors are medians of |predicted - measured| / measured, or NaN; peaks are the largest of any
    rank, and waits are totals.
    """

    name: str
    n_iterations: int
    n_steady: int
    n_skipped: int
    real_tokens_per_s: float
    padding_efficiency: float
    n_microbatches: float
    predicted_ms: float
    longest_trip_share: float
    measured_ms: float
    time_error: float
    predicted_peak_bytes: int
    measured_peak_bytes: int
    peak_error: float
    planning_ms: float
    plans_ahead: float
    waited_ms: float
    steady_waited_ms: float
    first_loss: float
    last_loss: float


def summarise(name: str, run: Recorded) -> RunSummary:
    """Summarises a run."""
    totals, steady = run.totals, run.steady

    def typical(value: Callable[[IterationRecord], float]) -> float:
        return median(value(record) for record in run.kept_steady)

    return RunSummary(
        name=name,
        n_iterations=totals.n_iterations,
        n_steady=steady.n_iterations,
        n_skipped=totals.n_skipped,
        real_tokens_per_s=typical(lambda r: r.tokens_per_s),
        padding_efficiency=typical(lambda r: r.padding_efficiency),
        n_microbatches=typical(lambda r: r.n_microbatches),
        predicted_ms=typical(lambda r: r.predicted_ms),
        longest_trip_share=typical(lambda r: r.longest_trip_share),
        measured_ms=typical(lambda r: r.measured_ms),
        time_error=typical(lambda r: relative_difference(r.predicted_ms, r.measured_ms)),
        predicted_peak_bytes=steady.predicted_peak_bytes,
        measured_peak_bytes=steady.measured_peak_bytes,
        peak_error=typical(
            lambda r: relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes)
        ),
        planning_ms=typical(lambda r: r.planning_ms),
        plans_ahead=typical(lambda r: r.plans_ahead),
        waited_ms=totals.waited_ms,
        steady_waited_ms=steady.waited_ms,
        first_loss=run.first.loss,
        last_loss=run.last.loss,
    )


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
