"""Schedules read from text: a line per stage, `F0 F1 B0 B1`, or `F0 F1 B0 W0 B1 W1`."""

from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

KIND_OF = {kind.name[0]: kind for kind in PassKind}


def parse_schedule(text: str) -> Schedule:
    """The schedule written as text; blank lines and indentation are ignored."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return Schedule.from_passes(map(parse_pass, row) for row in rows)


def parse_pass(text: str) -> Pass:
    return Pass(KIND_OF[text[0]], int(text[1:]))
