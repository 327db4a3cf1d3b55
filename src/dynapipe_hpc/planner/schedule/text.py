"""A schedule as a picture: a line per stage, `F0 F1 B0 B1`."""

from dynapipe_hpc.planner.schedule.schedule_rule import Direction, Pass, Schedule

_DIRECTION_OF = {direction.name[0]: direction for direction in Direction}


def format_schedule(schedule: Schedule) -> str:
    """The passes of every stage in order, first stage first."""
    return "\n".join(" ".join(map(str, row)) for row in schedule.passes)


def parse_schedule(text: str) -> Schedule:
    """The schedule that a picture shows; blank lines and indentation do not count."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return Schedule(tuple(tuple(map(_parse_pass, row)) for row in rows))


def _parse_pass(text: str) -> Pass:
    return Pass(_DIRECTION_OF[text[0]], int(text[1:]))
