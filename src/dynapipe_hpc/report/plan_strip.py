"""Timeline of an iteration in letters, for a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline, planned_bars

COLUMNS = 84
MAX_RANKS = 16
_FORWARD, _BACKWARD, _WEIGHT = "0123456789", "abcdefghij", "ABCDEFGHIJ"
_UPDATE = "u"
_SHOWN = (BarKind.FORWARD, BarKind.BACKWARD, BarKind.UPDATE)


def plan_strip(plans: Sequence[RankPlan]) -> Iterator[str]:
    """A legend, a line per rank, and the axis; at most 100 columns.

    A column shows what the rank does in the middle of its stretch of time.

    Args:
        plans: Plans of all ranks for one iteration; at least one.
    """
    until_ms = plans[0].prediction.iteration_ms
    yield (
        f"timeline, {until_ms / COLUMNS:.3g} ms per letter: 0-9 forward, a-j backward of the "
        "micro-batch with this last digit"
    )
    if any(plan.splits_backward for plan in plans):
        yield "  (A-J: gradients of its weights)"
    yield from _lanes({plan.rank: planned_bars(plan) for plan in plans}, until_ms)


def measured_strip(timeline: IterationTimeline) -> Iterator[str]:
    """Text timeline of an iteration: a line for each of the first ranks, and the axis.

    Args:
        timeline: The iteration, with a measured bar at least.
    """
    bars: dict[int, list[Bar]] = {rank: [] for rank in timeline.ranks[:MAX_RANKS]}
    for bar in timeline.measured:
        if bar.rank in bars and bar.kind in _SHOWN:
            bars[bar.rank].append(bar)
    yield from _lanes(bars, timeline.measured_ms)


def _lanes(bars: Mapping[int, Iterable[Bar]], until_ms: float) -> Iterator[str]:
    """A line per rank, and the axis."""
    width, end = len(str(max(bars))), f"{until_ms:,.1f} ms"
    for rank, bars_of_rank in bars.items():
        yield f"rank {rank:{width}} |{_strip(bars_of_rank, until_ms / COLUMNS)}|"
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
        return _UPDATE
    letters = {"F": _FORWARD, "W": _WEIGHT}.get(bar.label[0], _BACKWARD)
    return letters[bar.microbatch % 10]
