"""Stacked bars of the time of ranks: one per run, all to one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.report.rank_time import Use
from dynapipe_hpc.report.time_use import TimeUse

WIDE_ENOUGH = 6.0
"""Width from which a segment has a label, in percent of the longest bar."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of a bar.

    Attributes:
        use: What the time went to.
        css_class: Name of its colour.
        width: Width in percent of the longest bar.
        text: Label; empty if it does not fit.
        tip: Full description, for a tooltip.
    """

    use: Use
    css_class: str
    width: float
    text: str
    tip: str


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The bar of the run with this index; an iteration takes `iteration_ms`."""

    index: int
    iteration_ms: float
    segments: tuple[BarSegment, ...]


def time_bars(times: Sequence[TimeUse | None]) -> list[TimeBar]:
    """The bars of all runs whose use of time is known.

    A bar is as long as the time per iteration of its run.
    """
    longest_ms = max((each.iteration_ms for each in times if each is not None), default=0.0)
    return [
        TimeBar(
            index,
            each.iteration_ms,
            tuple(_segment(each, use, longest_ms) for use in Use if each.times_ms[use] > 0),
        )
        for index, each in enumerate(times)
        if each is not None
    ]


def _segment(times: TimeUse, use: Use, longest_ms: float) -> BarSegment:
    time_ms, percent = times.times_ms[use], f"{100 * times.share(use):.1f} %"
    width = 100 * time_ms / longest_ms
    return BarSegment(
        use,
        _css_class(use),
        width,
        f"{100 * times.share(use):.0f} %" if width >= WIDE_ENOUGH else "",
        f"{use}: {time_ms:,.1f} ms per iteration, {percent}",
    )


def legend(bars: Sequence[TimeBar]) -> list[tuple[Use, str]]:
    """Every use in a bar, with the name of its colour."""
    shown = {segment.use for bar in bars for segment in bar.segments}
    return [(use, _css_class(use)) for use in Use if use in shown]


def _css_class(use: Use) -> str:
    return f"use-{use.name.lower().replace('_', '-')}"
