"""Report of a rank on an iteration, and the record that the reports of all ranks make."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.memory import peak_bytes, stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.report.evaluation_record import EvaluationRecord
from dynapipe_hpc.report.iteration_record import COLUMNS, IterationRecord


@dataclass(frozen=True, slots=True)
class Execution:
    """One iteration on one rank.

    Attributes:
        plan: The plan that was executed.
        trace: Measured times and memory.
        started_s: Start of the execution, by `time.perf_counter`.
        waited_ms: Time the rank waited for the plan.
        planning_ms: CPU time of planning the iteration; 0 if another rank planned it.
        plans_ahead: Number of later plans that were ready.
        outlier: Outlier of the iteration; None if there is none or another rank planned it.
    """

    plan: RankPlan
    trace: IterationTrace
    started_s: float
    waited_ms: float
    planning_ms: float
    plans_ahead: int
    outlier: Outlier | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """What is written of an execution that is traced, as a rank sends it.

    Attributes:
        data: The plan, encoded.
        trace: Measured times and memory, and what the planner did meanwhile.
    """

    data: bytes
    trace: IterationTrace


@dataclass(frozen=True, slots=True)
class RankReport:
    """Numbers about an iteration, of one rank or, when combined, of all.

    The shards of a stage execute the same plan in step, so the first of them counts for all where
    numbers are added up.

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
        passes_ms: Time in which the rank executed passes; the mean over ranks when combined.
        last_pass_ms: End of its last pass, from the start of the iteration.
        trace_first: First iteration that a new request wants traced; -1 without one.
        trace_last: Last such iteration; -1 without a request.
        pass_times: Numbers of `PassTimes`; none if costs are not corrected.
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
    passes_ms: float
    last_pass_ms: float
    trace_first: int = -1
    trace_last: int = -1
    pass_times: Sequence[float] = ()

    @classmethod
    def of(cls, execution: Execution, *, first_shard: bool) -> Self:
        """The numbers of an execution.

        Args:
            execution: The execution.
            first_shard: Whether the rank is the first tensor-parallel shard of its stage.
        """
        plan, trace, outlier = execution.plan, execution.trace, execution.outlier
        are_passes = plan.instructions.are_passes
        starts_ms, ends_ms = np.array(trace.start_ms), np.array(trace.end_ms)
        own = plan.microbatches if plan.stage == 0 and first_shard else ()
        return cls(
            iteration=trace.iteration,
            loss=trace.loss if first_shard else 0.0,
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
            passes_ms=float((ends_ms - starts_ms)[are_passes].sum()),
            last_pass_ms=float(ends_ms[are_passes].max(initial=0.0)),
        )

    @property
    def bubble_share(self) -> float:
        """Share of the time until the last pass in which the average rank executes none."""
        return 1 - self.passes_ms / self.last_pass_ms if self.last_pass_ms else math.nan

    def combined(self, job: Job) -> tuple[Self, int]:
        """Combines the reports of all ranks, which call this together.

        Two all-reduces of a few numbers take as long whatever the number of ranks is, up to a
        logarithm. One rank at most has planned the iteration and knows of an outlier.

        Returns:
            The report, in which numbers that all ranks know alike are this rank's; and the signal
            that asked any of the ranks to stop, or 0.
        """
        loss, microbatches, padded_tokens, planning_ms, passes_ms, *pass_times = job.sums(
            (
                self.loss,
                self.n_microbatches,
                self.padded_tokens,
                self.planning_ms,
                self.passes_ms,
                *self.pass_times,
            )
        )
        largest = job.largest(
            (
                self.predicted_peak_bytes,
                self.measured_peak_bytes,
                self.waited_ms,
                -self.plans_ahead,
                self.outlier_sample,
                self.outlier_tokens,
                self.outlier_ms,
                self.last_pass_ms,
                self.trace_first,
                self.trace_last,
                job.stop.asked,
            )
        )
        predicted, measured, waited_ms, behind, sample, tokens, *rest = largest
        outlier_ms, last_pass_ms, trace_first, trace_last, asked = rest
        of_all = replace(
            self,
            loss=loss,
            n_microbatches=int(microbatches),
            padded_tokens=int(padded_tokens),
            predicted_peak_bytes=int(predicted),
            measured_peak_bytes=int(measured),
            waited_ms=waited_ms,
            planning_ms=planning_ms,
            plans_ahead=-int(behind),
            outlier_sample=int(sample),
            outlier_tokens=int(tokens),
            outlier_ms=outlier_ms,
            passes_ms=passes_ms / job.size,
            last_pass_ms=last_pass_ms,
            trace_first=int(trace_first),
            trace_last=int(trace_last),
            pass_times=tuple(pass_times),
        )
        return of_all, int(asked)


_COMMON = [field.name for field in fields(RankReport) if field.name in COLUMNS]


def _predicted_peak_bytes(plan: RankPlan, *, whole: bool) -> int:
    return peak_bytes(plan) - plan.memory.static if whole else stored_peak_bytes(plan)


def record_of(report: RankReport, samples: Sequence[Sample], measured_ms: float) -> IterationRecord:
    """The record of an iteration.

    Args:
        report: Combined report of all ranks.
        samples: Global batch.
        measured_ms: Measured time of the iteration, update included.
    """
    return IterationRecord(
        **{name: getattr(report, name) for name in _COMMON},
        n_samples=len(samples),
        real_tokens=sum(sample.tokens for sample in samples),
        measured_ms=measured_ms,
    )


def line_of_evaluation(record: EvaluationRecord) -> str:
    """One line for the log."""
    return (
        f"evaluation after {record.n_done} iterations: loss {record.loss:.4f}, perplexity "
        f"{record.perplexity:,.4g}, {record.tokens:,} target tokens in {record.took_ms:,.0f} ms"
    )
