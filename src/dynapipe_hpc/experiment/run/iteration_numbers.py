"""Numbers about an iteration, of one rank or, when they are combined, of all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.all_reduce_fields import Over, all_reduce_fields
from dynapipe_hpc.experiment.run.executed_iteration import ExecutedIteration
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.memory import peak_bytes, stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.iteration_record import COLUMNS, IterationRecord


@dataclass(frozen=True, slots=True)
class IterationNumbers:
    """Numbers about an iteration; the type of each says how it is combined over ranks.

    The shards of a stage execute the same plan in step, so the first of them counts for all where
    numbers are added up. One rank at most has planned the iteration and knows of an outlier.

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
        passes_ms: Time in which the rank executed passes.
        last_pass_ms: End of its last pass, from the start of the iteration.
        n_ranks: Number of ranks that the numbers are of.
        trace_first: First iteration that a new request wants traced; -1 without one.
        trace_last: Last such iteration; -1 without a request.
        stop_signal: Signal that asked to stop, or 0.
        pass_times: Numbers of `PassTimes`; none if costs are not corrected.
    """

    iteration: Annotated[int, Over.SAME]
    loss: Annotated[float, Over.SUM]
    gradient_norm: Annotated[float, Over.SAME]
    learning_rate: Annotated[float, Over.SAME]
    n_microbatches: Annotated[int, Over.SUM]
    padded_tokens: Annotated[int, Over.SUM]
    predicted_ms: Annotated[float, Over.SAME]
    predicted_peak_bytes: Annotated[int, Over.MAX]
    measured_peak_bytes: Annotated[int, Over.MAX]
    waited_ms: Annotated[float, Over.MAX]
    planning_ms: Annotated[float, Over.SUM]
    plans_ahead: Annotated[int, Over.MIN]
    outlier_sample: Annotated[int, Over.MAX]
    outlier_tokens: Annotated[int, Over.MAX]
    outlier_ms: Annotated[float, Over.MAX]
    passes_ms: Annotated[float, Over.SUM]
    last_pass_ms: Annotated[float, Over.MAX]
    n_ranks: Annotated[int, Over.SUM] = 1
    trace_first: Annotated[int, Over.MAX] = -1
    trace_last: Annotated[int, Over.MAX] = -1
    stop_signal: Annotated[int, Over.MAX] = 0
    pass_times: Annotated[tuple[float, ...], Over.SUM] = ()

    @classmethod
    def from_rank(cls, executed: ExecutedIteration) -> Self:
        """This rank's numbers about an iteration: what its plan and its trace say."""
        plan, trace, planning = executed.plan, executed.trace, executed.planning
        is_first_shard, outlier = executed.is_first_shard, planning.outlier
        are_passes = plan.instructions.are_passes
        starts_ms, ends_ms = np.array(trace.start_ms), np.array(trace.end_ms)
        own = plan.microbatches if plan.stage == 0 and is_first_shard else ()
        return cls(
            iteration=trace.iteration,
            loss=trace.loss if is_first_shard else 0.0,
            gradient_norm=trace.gradient_norm,
            learning_rate=trace.learning_rate,
            n_microbatches=len(own),
            padded_tokens=sum(microbatch.padded_tokens for microbatch in own),
            predicted_ms=plan.prediction.iteration_ms,
            predicted_peak_bytes=_predicted_peak_bytes(plan, whole=trace.peak_has_transient),
            measured_peak_bytes=trace.peak_bytes,
            waited_ms=executed.taken.waited_ms,
            planning_ms=planning.cpu_ms,
            plans_ahead=executed.taken.plans_ahead,
            outlier_sample=outlier.sample_id if outlier else -1,
            outlier_tokens=outlier.tokens if outlier else 0,
            outlier_ms=outlier.added_ms if outlier else 0.0,
            passes_ms=float((ends_ms - starts_ms)[are_passes].sum()),
            last_pass_ms=float(ends_ms[are_passes].max(initial=0.0)),
        )

    @property
    def bubble_share(self) -> float:
        """Share of the time until the last pass in which the average rank executes none."""
        if not self.last_pass_ms:
            return math.nan
        return 1 - self.passes_ms / self.n_ranks / self.last_pass_ms

    def all_reduce(self, job: Job) -> Self:
        """The numbers of all ranks, which call this together."""
        return all_reduce_fields(self, job)


_COMMON = [name for name in COLUMNS if name in IterationNumbers.__dataclass_fields__]


def _predicted_peak_bytes(plan: RankPlan, *, whole: bool) -> int:
    return peak_bytes(plan) - plan.memory.static if whole else stored_peak_bytes(plan)


def record_of(
    numbers: IterationNumbers, samples: Sequence[Sample], measured_ms: float
) -> IterationRecord:
    """The record of an iteration.

    Args:
        numbers: Numbers of all ranks.
        samples: Global batch.
        measured_ms: Measured time of the iteration, update included.
    """
    return IterationRecord(
        **{name: getattr(numbers, name) for name in _COMMON},
        n_samples=len(samples),
        real_tokens=sum(sample.tokens for sample in samples),
        measured_ms=measured_ms,
    )
