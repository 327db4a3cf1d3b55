"""Result of an iteration on a rank: its numbers, and what has been asked of the rank meanwhile."""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np

from dynapipe_hpc.experiment.run.all_reduce_fields import all_reduce_fields
from dynapipe_hpc.experiment.run.executed_iteration import ExecutedIteration
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.memory import peak_bytes, stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.iteration_record import IterationNumbers, Over


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult(IterationNumbers):
    """Numbers of an iteration, and requests; the type of each says how ranks combine it.

    Attributes:
        trace_first: First iteration that a new request wants traced; -1 without one.
        trace_last: Last such iteration; -1 without a request.
        stop_signal: Signal that asked to stop, or 0.
        pass_times: Numbers of `PassTimes`; none if costs are not corrected.
    """

    trace_first: Annotated[int, Over.MAX] = -1
    trace_last: Annotated[int, Over.MAX] = -1
    stop_signal: Annotated[int, Over.MAX] = 0
    pass_times: Annotated[tuple[float, ...], Over.SUM] = ()

    @classmethod
    def from_rank(cls, executed: ExecutedIteration) -> Self:
        """This rank's numbers about an iteration: what its plan and its trace say."""
        plan, trace, samples = executed.plan, executed.trace, executed.taken.samples
        is_first_shard, planning = executed.is_first_shard, executed.planning
        are_passes = plan.instructions.are_passes
        starts_ms, ends_ms = np.array(trace.start_ms), np.array(trace.end_ms)
        counted = plan.microbatches if plan.stage == 0 and is_first_shard else ()
        return cls(
            iteration=trace.iteration,
            loss=trace.loss if is_first_shard else 0.0,
            gradient_norm=trace.gradient_norm,
            learning_rate=trace.learning_rate,
            n_samples=len(samples),
            real_tokens=sum(sample.tokens for sample in samples),
            n_microbatches=len(counted),
            padded_tokens=sum(microbatch.padded_tokens for microbatch in counted),
            predicted_ms=plan.prediction.iteration_ms,
            predicted_peak_bytes=_predicted_peak_bytes(plan, whole=trace.peak_has_transient),
            measured_peak_bytes=trace.peak_bytes,
            waited_ms=executed.taken.waited_ms,
            planning_ms=planning.cpu_ms,
            plans_ahead=executed.taken.plans_ahead,
            longest_trip_ms=planning.longest_trip_ms,
            outlier_sample=planning.outlier.sample_id if planning.outlier else -1,
            outlier_tokens=planning.outlier.tokens if planning.outlier else 0,
            outlier_ms=planning.outlier.added_ms if planning.outlier else 0.0,
            passes_ms=float((ends_ms - starts_ms)[are_passes].sum()),
            last_pass_ms=float(ends_ms[are_passes].max(initial=0.0)),
            preferences=tuple(each * is_first_shard for each in trace.preferences),
        )

    def all_reduce(self, job: Job) -> Self:
        """The numbers of all ranks, which call this together."""
        return all_reduce_fields(self, job)


def _predicted_peak_bytes(plan: RankPlan, *, whole: bool) -> int:
    return peak_bytes(plan) - plan.memory.static if whole else stored_peak_bytes(plan)
