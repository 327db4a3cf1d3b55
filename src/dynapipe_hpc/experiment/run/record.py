"""The record of an iteration, combined from the reports of all ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.memory import peak_bytes, stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.report.iteration_record import IterationRecord


@dataclass(frozen=True, slots=True)
class Execution:
    """One iteration on one rank.

    Attributes:
        plan: The plan that was executed.
        trace: Measured times and memory.
        waited_ms: Time the rank waited for the plan.
        planning_ms: CPU time of planning the iteration; 0 if another rank planned it.
        plans_ahead: Number of later plans that were ready.
        outlier: Outlier of the iteration; None if there is none or another rank planned it.
    """

    plan: RankPlan
    trace: IterationTrace
    waited_ms: float
    planning_ms: float
    plans_ahead: int
    outlier: Outlier | None = None


@dataclass(frozen=True, slots=True)
class RankReport:
    """The numbers about an iteration that each rank sends to the first.

    Attributes:
        iteration: Number of the iteration.
        loss: Part of the loss that the rank's stage contributes.
        gradient_norm: Norm of the gradients over all stages, before clipping.
        learning_rate: Learning rate of the step.
        n_microbatches: Micro-batches of the replica on its first stage; 0 on the others.
        padded_tokens: Padded tokens of the replica on its first stage; 0 on the others.
        predicted_ms: Predicted time of the iteration, update included.
        predicted_peak_bytes: Predicted peak of activations; includes transient memory if the device
            measures that too.
        measured_peak_bytes: Measured peak of the same.
        waited_ms: Time the rank waited for the plan.
        planning_ms: CPU time of planning the iteration; 0 if another rank planned it.
        plans_ahead: Number of later plans that were ready.
        outlier_sample: Sample that alone lengthens the iteration; -1 if none does, or another rank
            planned it.
        outlier_tokens: Number of its tokens, or 0.
        outlier_ms: Time that it adds, or 0.
    """

    iteration: int
    loss: float
    gradient_norm: float
    learning_rate: float
    n_microbatches: int
    padded_tokens: int
    predicted_ms: float
    predicted_peak_bytes: int
    measured_peak_bytes: int
    waited_ms: float
    planning_ms: float
    plans_ahead: int
    outlier_sample: int
    outlier_tokens: int
    outlier_ms: float

    @classmethod
    def of(cls, execution: Execution) -> Self:
        """The numbers of an execution."""
        plan, trace, outlier = execution.plan, execution.trace, execution.outlier
        own = plan.microbatches if plan.stage == 0 else ()
        return cls(
            iteration=trace.iteration,
            loss=trace.loss,
            gradient_norm=trace.gradient_norm,
            learning_rate=trace.learning_rate,
            n_microbatches=len(own),
            padded_tokens=sum(microbatch.padded_tokens for microbatch in own),
            predicted_ms=plan.prediction.iteration_ms,
            predicted_peak_bytes=_predicted_peak_bytes(plan, whole=trace.peak_has_transient),
            measured_peak_bytes=trace.peak_bytes,
            waited_ms=execution.waited_ms,
            planning_ms=execution.planning_ms,
            plans_ahead=execution.plans_ahead,
            outlier_sample=outlier.sample_id if outlier else -1,
            outlier_tokens=outlier.tokens if outlier else 0,
            outlier_ms=outlier.added_ms if outlier else 0.0,
        )


def _predicted_peak_bytes(plan: RankPlan, *, whole: bool) -> int:
    return peak_bytes(plan) - plan.memory.static if whole else stored_peak_bytes(plan)


def record_of(
    reports: Sequence[RankReport], n_shards: int, samples: Sequence[Sample], measured_ms: float
) -> IterationRecord:
    """Combines the reports of all ranks.

    Args:
        reports: Reports by rank.
        n_shards: Tensor-parallel size: the shards of a stage report the same about their plan.
        samples: The global batch.
        measured_ms: Measured time of the iteration, update included.
    """
    first, per_plan = reports[0], reports[::n_shards]
    planned = max(reports, key=lambda report: report.outlier_sample)
    return IterationRecord(
        iteration=first.iteration,
        loss=sum(report.loss for report in per_plan),
        gradient_norm=first.gradient_norm,
        learning_rate=first.learning_rate,
        n_samples=len(samples),
        n_microbatches=sum(report.n_microbatches for report in per_plan),
        real_tokens=sum(sample.tokens for sample in samples),
        padded_tokens=sum(report.padded_tokens for report in per_plan),
        predicted_ms=first.predicted_ms,
        measured_ms=measured_ms,
        predicted_peak_bytes=max(report.predicted_peak_bytes for report in reports),
        measured_peak_bytes=max(report.measured_peak_bytes for report in reports),
        planning_ms=sum(report.planning_ms for report in reports),
        waited_ms=max(report.waited_ms for report in reports),
        plans_ahead=min(report.plans_ahead for report in reports),
        outlier_sample=planned.outlier_sample,
        outlier_tokens=planned.outlier_tokens,
        outlier_ms=planned.outlier_ms,
    )


def line_of(record: IterationRecord) -> str:
    """One line for the log."""
    tokens_per_s = 1e3 * record.real_tokens / record.measured_ms
    is_finite = math.isfinite(record.gradient_norm)
    skipped = "" if is_finite else ", update skipped: a gradient is not finite"
    outlier = (
        f", sample {record.outlier_sample} ({record.outlier_tokens:,} tokens) adds "
        f"{record.outlier_ms:,.0f} ms"
        if record.has_outlier
        else ""
    )
    return (
        f"iteration {record.iteration}: loss {record.loss:.4f}, "
        f"{tokens_per_s:,.0f} real tokens/s, "
        f"padding efficiency {100 * record.real_tokens / record.padded_tokens:.1f} %, "
        f"predicted {record.predicted_ms:,.0f} ms, measured {record.measured_ms:,.0f} ms, "
        f"{record.plans_ahead} plans ahead{outlier}{skipped}"
    )
