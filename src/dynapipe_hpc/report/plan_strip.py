"""Timeline of the plans of an iteration in letters, for a terminal."""

from collections.abc import Iterator, Sequence

from dynapipe_hpc.plan.instruction import BackwardWeight, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.planned_passes import AnyPass, planned_passes

COLUMNS = 84
_FORWARD, _BACKWARD, _WEIGHT = "0123456789", "abcdefghij", "ABCDEFGHIJ"


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
        yield f"rank {plan.rank:{width}} |{_strip(plan, until_ms / COLUMNS)}|"
    end = f"{until_ms:,.1f} ms"
    yield f"{'0':>{width + 8}}{end:>{COLUMNS - 1}}"


def _strip(plan: RankPlan, column_ms: float) -> str:
    letters = ["."] * COLUMNS
    for each in planned_passes(plan):
        last = min(COLUMNS - 1, int(each.end_ms / column_ms))
        for k in range(int(each.start_ms / column_ms), last + 1):
            if each.start_ms <= (k + 0.5) * column_ms < each.end_ms:
                letters[k] = _letter(each.step)
    return "".join(letters)


def _letter(step: AnyPass) -> str:
    if isinstance(step, Forward):
        return _FORWARD[step.microbatch % 10]
    return (_WEIGHT if isinstance(step, BackwardWeight) else _BACKWARD)[step.microbatch % 10]
