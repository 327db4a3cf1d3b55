"""Timelines drawn: as SVG, which stands alone or in a page, and in letters for a terminal."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline, planned_bars

MAX_RANKS = 16
"""Ranks of a measured iteration that have room in a drawing."""
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
                drawn += _bar(bar, top, height, per_ms)
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


def _bar(bar: Bar, top: int, height: int, per_ms: float) -> Iterator[str]:
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
    yield from _strips({plan.rank: planned_bars(plan) for plan in plans}, until_ms)


def measured_strip(timeline: IterationTimeline) -> Iterator[str]:
    """A line for each of the first ranks, and the axis; at least one bar was measured."""
    shown = [bar for bar in timeline.measured if bar.kind in _SHOWN]
    ranks = timeline.ranks[:MAX_RANKS]
    bars = {rank: [bar for bar in shown if bar.rank == rank] for rank in ranks}
    yield from _strips(bars, timeline.measured_ms)


def _strips(bars: Mapping[int, Iterable[Bar]], until_ms: float) -> Iterator[str]:
    width, end = len(str(max(bars))), f"{until_ms:,.1f} ms"
    for rank, of_rank in bars.items():
        yield f"rank {rank:{width}} |{_strip(of_rank, until_ms / COLUMNS)}|"
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
    if bar.microbatch is None:
        return "u"
    letters = {"F": _FORWARD, "W": _WEIGHT}.get(bar.label[0], _BACKWARD)
    return letters[bar.microbatch % 10]
