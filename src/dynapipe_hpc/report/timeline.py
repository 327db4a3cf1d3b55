"""Timeline of one iteration: planned and measured bars of every rank, and drawings of them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Annotated, NamedTuple, assert_never

from pydantic import Field

from dynapipe_hpc.executor.run import IterationTrace
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
from dynapipe_hpc.plan.rank_plan import RankPlan, symbol
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
    """Predicted time of all passes of a micro-batch, by replica and index in the replica."""
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


MAX_RANKS = 16
"""Maximum number of ranks in a drawing of a measured iteration."""
WIDTH, LEFT, GAP, TITLE = 1000, 60, 6, 28
LANE, LOW_LANE = 44, 20
MIN_LABEL = 52
STYLE = (
    ".plan text{font:11px sans-serif;fill:#1b1f24}.plan .axis{fill:#59636e}"
    ".plan .title{font-weight:bold}"
)
_LIGHTNESS = {"F": 82, "B": 62, "I": 62, "W": 48}  # by first letter of a pass
_UPDATE = "#8c959f"
_SHOWN = (BarKind.FORWARD, BarKind.BACKWARD, BarKind.UPDATE)

COLUMNS = 84
_FORWARD, _BACKWARD, _WEIGHT = "0123456789", "abcdefghij", "ABCDEFGHIJ"


class Lane(NamedTuple):
    """Bars of one rank side by side, under a name."""

    name: str
    bars: Iterable[Bar]


def plan_svg(plans: Sequence[RankPlan]) -> str:
    """A lane per rank for the plans of one iteration; forward is light, backward is dark."""
    return compare_svg({"": plans})


def compare_svg(panels: Mapping[str, Sequence[RankPlan]]) -> str:
    """Plans for the same samples by title, one below the other, on one time scale."""
    until_ms = max(plans[0].prediction.iteration_ms for plans in panels.values())
    lanes = {
        title: [Lane(_name(plan, plans), planned_bars(plan)) for plan in plans]
        for title, plans in panels.items()
    }
    return _svg(lanes, until_ms, LANE, "Timeline of a plan: what every rank executes, and when")


def measured_svg(timeline: IterationTimeline, until_ms: float, name: str) -> str:
    """A planned lane above a measured one per rank; `until_ms` fills the width."""
    lanes = [
        Lane(what, [bar for bar in side if bar.rank == rank and bar.kind in _SHOWN])
        for rank in timeline.ranks[:MAX_RANKS]
        for what, side in ((f"rank {rank}", timeline.planned), ("measured", timeline.measured))
    ]
    about = f"Timeline of {name}, iteration {timeline.iteration}, planned above measured"
    return _svg({"": lanes}, until_ms, LOW_LANE, about)


def _name(plan: RankPlan, plans: Sequence[RankPlan]) -> str:
    return f"rank {plan.rank}" if plans[-1].replica else f"stage {plan.stage}"


def _svg(panels: Mapping[str, Sequence[Lane]], until_ms: float, height: int, about: str) -> str:
    per_ms = (WIDTH - LEFT) / until_ms
    drawn: list[str] = []
    top = 0
    for title, lanes in panels.items():
        if title:
            drawn.append(f'<text class="title" x="0" y="{top + TITLE - 8}">{escape(title)}</text>')
            top += TITLE
        for lane in lanes:
            drawn.append(f'<text x="0" y="{top + height / 2 + 4:g}">{escape(lane.name)}</text>')
            for bar in lane.bars:
                drawn += _bar_svg(bar, top, height, per_ms)
            top += height + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" viewBox="0 0 {WIDTH} {top + 24}" '
        f'role="img" aria-label="{escape(about)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{top + 24}" fill="#fff"/>',
        *drawn,
        *_axis(until_ms, per_ms, top),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar_svg(bar: Bar, top: int, height: int, per_ms: float) -> Iterator[str]:
    x, width = LEFT + bar.start_ms * per_ms, (bar.end_ms - bar.start_ms) * per_ms
    fill, label = _UPDATE, ""
    if bar.microbatch is not None:
        fill = f"hsl({bar.microbatch * 47 % 360},60%,{_LIGHTNESS[bar.label[0]]}%)"
        label = _shape(bar) if width >= MIN_LABEL else ""
    yield (
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" '
        f'fill="{fill}" stroke="#fff"><title>{_tip(bar)}</title></rect>'
    )
    if label:
        yield (
            f'<text x="{x + width / 2:.1f}" y="{top + height / 2 + 4:g}" '
            f'text-anchor="middle">{label}</text>'
        )


def _shape(bar: Bar) -> str:
    rows, row_tokens = bar.shape or (0, 0)
    return f"{row_tokens}" if rows == 1 else f"{rows} × {row_tokens}"


def _tip(bar: Bar) -> str:
    time = f"{bar.start_ms:.1f} to {bar.end_ms:.1f} ms"
    if bar.shape is None:
        return f"{bar.label}: {time}"
    rows, row_tokens = bar.shape
    return f"{bar.label}, micro-batch {bar.microbatch} ({rows} x {row_tokens} tokens): {time}"


def _axis(until_ms: float, per_ms: float, bottom: int) -> Iterator[str]:
    step_ms = 10.0 ** math.floor(math.log10(until_ms / 2))
    for i in range(int(until_ms / step_ms) + 1):
        label = f"{i * step_ms:g}" if i else "0 ms"
        yield (
            f'<text class="axis" x="{LEFT + i * step_ms * per_ms:.1f}" y="{bottom + 16}" '
            f'text-anchor="middle">{label}</text>'
        )


def plan_strip(plans: Sequence[RankPlan]) -> Iterator[str]:
    """A legend, a line per rank, and the axis; at most 100 columns.

    A letter shows what the rank does in the middle of its stretch of time.
    """
    until_ms = plans[0].prediction.iteration_ms
    yield (
        f"timeline, {until_ms / COLUMNS:.3g} ms per letter: 0-9 forward, a-j backward of the "
        "micro-batch with this last digit"
    )
    if any(plan.splits_backward for plan in plans):
        yield "  (A-J: gradients of its weights)"
    width, end = len(str(max(plan.rank for plan in plans))), f"{until_ms:,.1f} ms"
    for plan in plans:
        yield f"rank {plan.rank:{width}} |{_strip(planned_bars(plan), until_ms / COLUMNS)}|"
    yield f"{'0':>{width + 8}}{end:>{COLUMNS - 1}}"


def _strip(bars: Iterable[Bar], column_ms: float) -> str:
    letters = ["."] * COLUMNS
    for bar in bars:
        last = min(COLUMNS - 1, int(bar.end_ms / column_ms))
        for k in range(int(bar.start_ms / column_ms), last + 1):
            if bar.start_ms <= (k + 0.5) * column_ms < bar.end_ms:
                letters[k] = _letter(bar)
    return "".join(letters)


def _letter(bar: Bar) -> str:
    letters = {"F": _FORWARD, "W": _WEIGHT}.get(bar.label[0], _BACKWARD)
    return letters[(bar.microbatch or 0) % 10]
