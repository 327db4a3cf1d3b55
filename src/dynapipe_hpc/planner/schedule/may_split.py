"""Whether schedule rules split backward passes."""

from collections.abc import Iterable

from dynapipe_hpc.planner.schedule.adaptive import adaptive_split
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1


def may_split(rules: Iterable[ScheduleRule]) -> bool:
    """Whether any of the rules gives gradients of weights passes of their own."""
    return any(rule in (zb_h1, adaptive_split) for rule in rules)
