"""One iteration on one rank, what it measured, and how the numbers of all ranks are combined."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.run.plan_ahead import PlannerActivity, PlanningFacts
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.memory import peak_bytes, stored_peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.records import IterationNumbers, Over

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Numbers = TypeVar("Numbers", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class TakenPlan:
    """Plan of an iteration, taken from the store, encoded and decoded, and its global batch."""

    data: bytes
    plan: RankPlan
    samples: Sequence[Sample]
    waited_ms: float
    plans_ahead: int


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Encoded plan and trace of an iteration, as a rank sends them to be written."""

    data: bytes
    trace: IterationTrace


@dataclass(frozen=True, slots=True)
class ExecutedIteration:
    """One iteration on one rank, which is the first shard of its stage or another."""

    taken: TakenPlan
    trace: IterationTrace
    start_s: float  # by `time.perf_counter`
    is_first_shard: bool
    planning: PlanningFacts

    @property
    def plan(self) -> RankPlan:
        return self.taken.plan

    def rank_trace(self, activity: PlannerActivity) -> RankTrace:
        """Plan and trace of the iteration, with the activity of the rank's planner meanwhile."""
        planning = activity.between(self.start_s, self.start_s + 1e-3 * max(self.trace.end_ms))
        return RankTrace(self.taken.data, replace(self.trace, planning=planning))


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult(IterationNumbers):
    """Numbers of an iteration, and requests; the type of each says how ranks combine it."""

    # Iterations that a new request wants traced.
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


_SIGNS = {Over.MAX: 1, Over.MIN: -1}
"""Least numbers are compared by their negatives, so that one all-reduce has both."""


class _Field(NamedTuple):
    name: str
    kind: Any
    over: Over


def all_reduce_fields(numbers: Numbers, job: Job) -> Numbers:
    """Combines the numbers of all ranks, which call this together, by two all-reduces.

    Sums may be tuples, as long on every rank; what all ranks know alike is this rank's.
    """
    fields = _fields_of(type(numbers))
    summed = [(field, getattr(numbers, field.name)) for field in fields if field.over is Over.SUM]
    terms = chain.from_iterable(n if isinstance(n, tuple) else (n,) for _, n in summed)
    sums = iter(job.all_reduce_sum(list(terms)))
    combined = {
        name: kind(islice(sums, len(number)) if isinstance(number, tuple) else next(sums))
        for (name, kind, _), number in summed
    }
    compared = [(field, _SIGNS[field.over]) for field in fields if field.over in _SIGNS]
    largest = job.all_reduce_max([sign * getattr(numbers, field.name) for field, sign in compared])
    for ((name, kind, _), sign), number in zip(compared, largest, strict=True):
        combined[name] = kind(sign * number)
    return dataclasses.replace(numbers, **combined)


@cache
def _fields_of(kind: type) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    # The type comes first, and `Over` last; between them are limits of what files may hold.
    return [_Field(name, get_args(hint)[0], get_args(hint)[-1]) for name, hint in hints.items()]
