"""Timeline of the plans of an iteration in letters, for a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from dynapipe_hpc.plan.instruction import BackwardWeight, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.planned_passes import AnyPass, planned_passes
from dynapipe_hpc.report.timeline import Bar, IterationTimeline, Kind

COLUMNS = 84
MAX_RANKS = 16
_FORWARD, _BACKWARD, _WEIGHT = "0123456789", "abcdefghij", "ABCDEFGHIJ"
_UPDATE = "u"
_SHOWN = (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)


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
    width = len(str(plans[-1].rank))
    for plan in plans:
        passes = ((each.start_ms, each.end_ms, _letter(each.step)) for each in planned_passes(plan))
        yield f"rank {plan.rank:{width}} |{_strip(passes, until_ms / COLUMNS)}|"
    yield _axis(until_ms, width)


def measured_strip(timeline: IterationTimeline) -> Iterator[str]:
    """Text timeline of an iteration: a line for each of the first ranks, and the axis.

    Args:
        timeline: The iteration, with a measured bar at least.
    """
    until_ms = timeline.measured_ms
    width = len(str(timeline.ranks[-1]))
    for rank in timeline.ranks[:MAX_RANKS]:
        bars = (
            (bar.start_ms, bar.end_ms, _letter_of(bar))
            for bar in timeline.measured
            if bar.rank == rank and bar.kind in _SHOWN
        )
        yield f"rank {rank:{width}} |{_strip(bars, until_ms / COLUMNS)}|"
    yield _axis(until_ms, width)


def _axis(until_ms: float, width: int) -> str:
    end = f"{until_ms:,.1f} ms"
    return f"{'0':>{width + 8}}{end:>{COLUMNS - 1}}"


def _strip(bars: Iterable[tuple[float, float, str]], column_ms: float) -> str:
    """Letters of bars, each given by start, end and letter."""
    letters = ["."] * COLUMNS
    for start_ms, end_ms, letter in bars:
        last = min(COLUMNS - 1, int(end_ms / column_ms))
        for k in range(int(start_ms / column_ms), last + 1):
            if start_ms <= (k + 0.5) * column_ms < end_ms:
                letters[k] = letter
    return "".join(letters)


def _letter_of(bar: Bar) -> str:
    if bar.microbatch is None:
        return _UPDATE
    return (_FORWARD if bar.kind is Kind.FORWARD else _BACKWARD)[bar.microbatch % 10]


def _letter(step: AnyPass) -> str:
    if isinstance(step, Forward):
        return _FORWARD[step.microbatch % 10]
    return (_WEIGHT if isinstance(step, BackwardWeight) else _BACKWARD)[step.microbatch % 10]
