"""Timeline of one iteration: planned and measured bars of every rank."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, assert_never

from pydantic import Field

from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import symbol
from dynapipe_hpc.report.work_shares import PassShares, WorkShares

_Pass = Forward | Backward | BackwardInput | BackwardWeight

LARGEST = 1 << 53
"""Largest number in a timeline: floats hold all integers up to it."""
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Ms = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class BarKind(StrEnum):
    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    TRANSFER = "transfer"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the timeline: one instruction of a rank, as in the plan's text, from start to end.

    Updates have no micro-batch and no shape (rows, tokens per row). A rank keeps `kept_bytes` of
    activations, as planned, from the start of a forward and from the end of a backward pass on.
    """

    rank: Count
    kind: BarKind
    label: str
    microbatch: Count | None
    shape: tuple[Count, Count] | None
    start_ms: Ms
    end_ms: Ms
    shares: WorkShares | None = None
    kept_bytes: Count | None = None


@dataclass(frozen=True, slots=True)
class IterationTimeline:
    """Timeline of an iteration over all ranks: passes as planned, instructions as measured."""

    iteration: Count
    planned_ms: Ms
    planned: tuple[Bar, ...]
    measured: tuple[Bar, ...]

    @property
    def measured_ms(self) -> float:
        """End of the last instruction, from the start of the iteration."""
        return max((bar.end_ms for bar in self.measured), default=0.0)

    @property
    def ranks(self) -> list[int]:
        return sorted({bar.rank for bar in self.planned + self.measured})


def timeline_of(
    plans: Sequence[RankPlan],
    traces: Sequence[IterationTrace],
    shares: Sequence[Sequence[PassShares]] | None = None,
) -> IterationTimeline:
    """Joins plans, traces of the same ranks in the same order, and shares if they are known."""
    known: Sequence[Sequence[PassShares] | None] = shares or [None] * len(plans)
    triples = zip(plans, traces, known, strict=True)
    return IterationTimeline(
        iteration=plans[0].iteration,
        planned_ms=plans[0].prediction.iteration_ms,
        planned=tuple(bar for plan in plans for bar in planned_bars(plan)),
        measured=tuple(bar for each in triples for bar in _measured(*each)),
    )


def planned_bars(plan: RankPlan) -> Iterator[Bar]:
    """The passes of a rank at their predicted times, in the order of execution."""
    passes = [step for step in plan.instructions if isinstance(step, _Pass)]
    times_ms, kept = plan.prediction.passes_ms, _kept_bytes(plan, passes)
    for step, (start_ms, end_ms), kept_bytes in zip(passes, times_ms, kept, strict=True):
        yield _bar(plan, step, start_ms, end_ms, kept_bytes=kept_bytes)


def microbatch_times_ms(plans: Iterable[RankPlan]) -> dict[tuple[int, int], float]:
    """Predicted time of all passes of a micro-batch, by replica and index in it."""
    times_ms = defaultdict[tuple[int, int], float](float)
    for plan in plans:
        for bar in planned_bars(plan):
            times_ms[plan.replica, bar.microbatch or 0] += bar.end_ms - bar.start_ms
    return times_ms


def _measured(
    plan: RankPlan, trace: IterationTrace, known: Sequence[PassShares] | None
) -> Iterator[Bar]:
    times_ms = (trace.start_ms, trace.end_ms)
    kept = _kept_bytes(plan, plan.instructions)
    steps = zip(plan.instructions, *times_ms, kept, strict=True)
    for step, start_ms, end_ms, kept_bytes in steps:
        shares = None
        if known is not None and isinstance(step, _Pass):
            of_microbatch = known[step.microbatch]
            is_forward = isinstance(step, Forward)
            shares = of_microbatch.forward if is_forward else of_microbatch.backward
        yield _bar(plan, step, start_ms, end_ms, shares=shares, kept_bytes=kept_bytes)


def _kept_bytes(plan: RankPlan, steps: Iterable[Instruction]) -> Iterator[int | None]:
    """Activations kept after each forward or backward pass; None after any other step."""
    kept_bytes = 0
    for step in steps:
        match step:
            case Forward(microbatch):
                kept_bytes += plan.memory.stored[microbatch]
            case Backward(microbatch) | BackwardWeight(microbatch):
                kept_bytes -= plan.memory.stored[microbatch]
        yield kept_bytes if isinstance(step, _Pass) else None


def _bar(
    plan: RankPlan,
    step: Instruction,
    start_ms: float,
    end_ms: float,
    *,
    shares: WorkShares | None = None,
    kept_bytes: int | None = None,
) -> Bar:
    kind, label = _kind(step), symbol(step)
    if isinstance(step, ReduceGradients | StepOptimizer):
        return Bar(plan.rank, kind, label, None, None, start_ms, end_ms)
    microbatch = plan.microbatches[step.microbatch]
    shape = (microbatch.n_rows, microbatch.row_tokens)
    times = (start_ms, end_ms)
    return Bar(plan.rank, kind, label, step.microbatch, shape, *times, shares, kept_bytes)


def _kind(step: Instruction) -> BarKind:
    match step:
        case Load():
            return BarKind.LOAD
        case Forward():
            return BarKind.FORWARD
        case Backward() | BackwardInput() | BackwardWeight():
            return BarKind.BACKWARD
        case StartSend() | StartReceive():
            return BarKind.TRANSFER
        case WaitSend() | WaitReceive():
            return BarKind.WAIT
        case ReduceGradients() | StepOptimizer():
            return BarKind.UPDATE
        case _:
            assert_never(step)
