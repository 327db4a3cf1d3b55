"""Gantt chart: layout of the bars of a timeline, ranks down, time across."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline

MAX_RANKS = 16
SHOWN = {BarKind.FORWARD, BarKind.BACKWARD, BarKind.UPDATE}

WIDTH, LEFT, RIGHT = 1100, 122, 12
LANE, RANK_GAP, AXIS = 22, 12, 34
LETTER_WIDTH = 7.5


@dataclass(frozen=True, slots=True)
class GanttBar:
    """A bar of the chart, in units of the drawing.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Width of the bar.
        kind: "forward", "backward" or "update".
        hue: Colour of the micro-batch in degrees.
        text: Label inside the bar; empty if it does not fit.
        tip: Full description, for a tooltip.
    """

    x: float
    y: float
    width: float
    kind: str
    hue: int
    text: str
    tip: str


@dataclass(frozen=True, slots=True)
class Gantt:
    """A Gantt chart of one iteration.

    Attributes:
        width: Width of the drawing.
        height: Height of the drawing.
        lanes: (rank, upper edge, "planned" or "measured") of every lane, two per rank.
        ticks: Coordinates on the time axis, with labels in ms.
        boxes: Bars of the chart.
        planned_end: Coordinate of the end of the planned iteration.
        n_hidden_ranks: Number of ranks without room in the chart.
    """

    width: int
    height: int
    lanes: tuple[tuple[int, int, str], ...]
    ticks: tuple[tuple[float, str], ...]
    boxes: tuple[GanttBar, ...]
    planned_end: float
    n_hidden_ranks: int


def gantt(timeline: IterationTimeline, until_ms: float) -> Gantt:
    """The chart of an iteration's passes and updates: per rank a planned row above a measured one.

    Args:
        timeline: Timeline of the iteration.
        until_ms: Time that fills the width, the same for all charts that are compared.
    """
    per_ms = (WIDTH - LEFT - RIGHT) / until_ms
    ranks = timeline.ranks[:MAX_RANKS]
    top_of = {rank: i * (2 * LANE + RANK_GAP) for i, rank in enumerate(ranks)}
    return Gantt(
        width=WIDTH,
        height=len(ranks) * (2 * LANE + RANK_GAP) + AXIS,
        lanes=tuple(
            (rank, top + side * LANE, what)
            for rank, top in top_of.items()
            for side, what in enumerate(("planned", "measured"))
        ),
        ticks=tuple((LEFT + ms * per_ms, f"{ms:g}") for ms in _ticks(until_ms)),
        boxes=tuple(_boxes(timeline, top_of, per_ms)),
        planned_end=LEFT + timeline.planned_ms * per_ms,
        n_hidden_ranks=len(timeline.ranks) - len(ranks),
    )


def _boxes(
    timeline: IterationTimeline, top_of: dict[int, int], per_ms: float
) -> Iterator[GanttBar]:
    bars = timeline.planned + timeline.measured
    n_colours = 1 + max((bar.microbatch or 0 for bar in bars), default=0)
    for side, side_bars in enumerate((timeline.planned, timeline.measured)):
        for bar in side_bars:
            if bar.kind in SHOWN and bar.rank in top_of:
                top = top_of[bar.rank] + side * LANE
                yield _box(bar, top, per_ms, _hue(bar.microbatch or 0, n_colours))


def _box(bar: Bar, top: float, per_ms: float, hue: int) -> GanttBar:
    width = (bar.end_ms - bar.start_ms) * per_ms
    text = "" if bar.microbatch is None else str(bar.microbatch)
    return GanttBar(
        x=LEFT + bar.start_ms * per_ms,
        y=top,
        width=width,
        kind=bar.kind,
        hue=hue,
        text=text if len(text) * LETTER_WIDTH + 2 <= width else "",
        tip=_tip(bar),
    )


def _tip(bar: Bar) -> str:
    time = f"{bar.start_ms:.1f} to {bar.end_ms:.1f} ms"
    if bar.shape is None:
        return f"{bar.label}: {time}"
    rows, row_tokens = bar.shape
    return f"{bar.kind} of micro-batch {bar.microbatch} ({rows} x {row_tokens} tokens): {time}"


def _hue(microbatch: int, n_colours: int) -> int:
    """Hue in degrees: spread over the colour circle, with its two ends kept apart."""
    return (190 + 300 * microbatch // n_colours) % 360


def _ticks(until_ms: float) -> Iterator[float]:
    """Round times in ms: about ten, at steps of 1, 2 or 5 times a power of ten."""
    least = until_ms / 10
    power: float = 10 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    return (i * step for i in range(int(until_ms / step) + 1))
