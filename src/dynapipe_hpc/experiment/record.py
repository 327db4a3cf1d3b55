"""One line about an iteration, from what every rank says of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.memory import stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.iteration_record import IterationRecord


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank says of an iteration.

    Attributes:
        plan: That it executed.
        trace: What that took.
        waited_ms: Time until it had the plan.
        planning_ms: Time in which it had planned the iteration; 0 if another rank did.
        plans_ahead: Plans that were ready beyond this one.
    """

    plan: RankPlan
    trace: IterationTrace
    waited_ms: float
    planning_ms: float
    plans_ahead: int


def record_of(
    reports: Sequence[RankReport], samples: Sequence[Sample], measured_ms: float
) -> IterationRecord:
    """Puts the reports of all ranks together.

    Args:
        reports: By rank.
        samples: The global batch.
        measured_ms: Time of the whole iteration.
    """
    pipelines = [report.plan.microbatches for report in reports if report.plan.stage == 0]
    microbatches = [microbatch for pipeline in pipelines for microbatch in pipeline]
    return IterationRecord(
        iteration=reports[0].trace.iteration,
        loss=sum(report.trace.loss for report in reports),
        gradient_norm=reports[0].trace.gradient_norm,
        learning_rate=reports[0].trace.learning_rate,
        n_samples=len(samples),
        n_microbatches=len(microbatches),
        real_tokens=sum(sample.tokens for sample in samples),
        padded_tokens=sum(microbatch.padded_tokens for microbatch in microbatches),
        predicted_ms=reports[0].plan.prediction.iteration_ms,
        measured_ms=measured_ms,
        predicted_peak_bytes=max(stored_peak_bytes(report.plan) for report in reports),
        measured_peak_bytes=max(report.trace.peak_bytes for report in reports),
        planning_ms=sum(report.planning_ms for report in reports),
        waited_ms=max(report.waited_ms for report in reports),
        plans_ahead=min(report.plans_ahead for report in reports),
    )


def line_of(record: IterationRecord) -> str:
    """The record in one line for the log."""
    tokens_per_s = 1e3 * record.real_tokens / record.measured_ms
    return (
        f"iteration {record.iteration}: loss {record.loss:.4f}, "
        f"{tokens_per_s:,.0f} real tokens/s, "
        f"padding efficiency {100 * record.real_tokens / record.padded_tokens:.1f} %, "
        f"predicted {record.predicted_ms:,.0f} ms, measured {record.measured_ms:,.0f} ms, "
        f"{record.plans_ahead} plans ahead"
    )
