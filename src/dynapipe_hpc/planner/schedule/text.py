"""Schedules as text: a line per stage, `F0 F1 B0 B1`, or `F0 F1 B0 W0 B1 W1`."""

from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

_KIND_OF = {kind.name[0]: kind for kind in PassKind}


def format_schedule(schedule: Schedule) -> str:
    """The passes of every stage in order, first stage first."""
    return "\n".join(" ".join(map(str, row)) for row in schedule.passes)


def parse_schedule(text: str) -> Schedule:
    """The schedule written as text; blank lines and indentation are ignored."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return Schedule.from_passes(map(_parse_pass, row) for row in rows)


def _parse_pass(text: str) -> Pass:
    return Pass(_KIND_OF[text[0]], int(text[1:]))
