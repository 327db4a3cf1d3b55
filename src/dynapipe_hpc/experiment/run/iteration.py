"""One iteration on one rank: its measurements, and the numbers of all ranks."""

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args, get_type_hints

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import IterationTrace
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.rank_plan import RankPlan, peak_bytes, stored_peak_bytes
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip
from dynapipe_hpc.report.records import IterationNumbers, Over

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Numbers = TypeVar("Numbers", bound="DataclassInstance")

_MAX_QUIET_S = 0.05


class QuietPeriod:
    """Time from the last instruction of an iteration to the first of the next.

    Ranks compare plans and add up numbers then, and each waits for the slowest. A plan that is
    taken makes room for another, so that planning would begin just then, on every rank, and take
    the core and the interpreter lock. Threads whose work can wait call `wait` before they begin it.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._over.set()

    def begin(self) -> None:
        self._over.clear()

    def end(self) -> None:
        self._over.set()

    def wait(self) -> None:
        """Waits for the end of a quiet period, at most 50 ms.

        By then, the period must contain an evaluation or a checkpoint, in which threads may work.
        """
        self._over.wait(_MAX_QUIET_S)


@dataclass(frozen=True, slots=True)
class TakenPlan:
    """Plan of an iteration from the store, as bytes and decoded, and its global batch.

    Only the rank that has planned it knows the CPU time of planning, and how long the longest
    sample takes through all stages and back.
    """

    data: bytes
    plan: RankPlan
    samples: Sequence[Sample]
    waited_ms: float
    plans_ahead: int
    planning_ms: float = 0.0
    trip: LongestTrip | None = None


RankTrace = tuple[bytes, IterationTrace]
"""Encoded plan and trace of an iteration, as a rank sends them to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult(IterationNumbers):
    """Numbers of an iteration, and a signal to stop; the type of each says how ranks combine it."""

    stop_signal: Annotated[int, Over.MAX] = 0
    pass_times: Annotated[tuple[float, ...], Over.SUM] = ()

    @classmethod
    def from_rank(cls, taken: TakenPlan, trace: IterationTrace, *, is_first_shard: bool) -> Self:
        """The numbers of one rank; only a stage's first shard counts its loss and micro-batches."""
        plan, samples, trip = taken.plan, taken.samples, taken.trip
        are_passes = plan.instructions.are_passes
        starts_ms, ends_ms = np.array(trace.start_ms), np.array(trace.end_ms)
        counted = plan.microbatches if plan.stage == 0 and is_first_shard else ()
        outlier = trip if trip and trip.added_ms else None
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
            predicted_peak_bytes=(
                peak_bytes(plan) - plan.memory.static
                if trace.peak_has_transient
                else stored_peak_bytes(plan)
            ),
            measured_peak_bytes=trace.peak_bytes,
            waited_ms=taken.waited_ms,
            planning_ms=taken.planning_ms,
            plans_ahead=taken.plans_ahead,
            longest_trip_ms=trip.trip_ms if trip else 0.0,
            outlier_sample=outlier.sample.sample_id if outlier else -1,
            outlier_tokens=outlier.sample.tokens if outlier else 0,
            outlier_ms=outlier.added_ms if outlier else 0.0,
            passes_ms=float((ends_ms - starts_ms)[are_passes].sum()),
            last_pass_ms=float(ends_ms[are_passes].max(initial=0.0)),
            preferences=tuple(each * is_first_shard for each in trace.preferences),
        )


_SIGNS = {Over.MAX: 1, Over.MIN: -1}
"""A minimum is the negative maximum of the negatives, so that one all-reduce makes both."""


def all_reduce_fields(numbers: Numbers, job: Job) -> Numbers:
    """Combines the numbers of all ranks, which call this together, by two all-reduces.

    Sums may be tuples, of equal length on every rank; numbers that all ranks know stay the same.
    """
    fields = [(*each, getattr(numbers, each[0])) for each in _fields_of(type(numbers))]
    summed = [(name, kind, number) for name, kind, over, number in fields if over is Over.SUM]
    terms = chain.from_iterable(n if isinstance(n, tuple) else (n,) for *_, n in summed)
    sums = iter(job.all_reduce_sum(list(terms)))
    combined = {
        name: kind(islice(sums, len(number)) if isinstance(number, tuple) else next(sums))
        for name, kind, number in summed
    }
    compared = [(name, kind, _SIGNS[over], n) for name, kind, over, n in fields if over in _SIGNS]
    largest = job.all_reduce_max([sign * number for *_, sign, number in compared])
    for (name, kind, sign, _), number in zip(compared, largest, strict=True):
        combined[name] = kind(sign * number)
    return dataclasses.replace(numbers, **combined)


@cache
def _fields_of(kind: type) -> list[tuple[str, Any, Over]]:
    hints = get_type_hints(kind, include_extras=True)
    # The type comes first, and `Over` last; between them are limits of what files may hold.
    return [(name, get_args(hint)[0], get_args(hint)[-1]) for name, hint in hints.items()]
