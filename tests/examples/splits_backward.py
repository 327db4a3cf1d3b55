"""Tells schedules with split backward passes from others."""

from dynapipe_hpc.planner.schedule.schedule_rule import PassKind, Schedule


def splits_backward(schedule: Schedule) -> bool:
    """Whether weight gradients have separate passes."""
    return any(p.kind is PassKind.WEIGHT for p in schedule.passes[0])
