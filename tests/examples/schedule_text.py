"""Schedules of passes, and those read from text: a line per stage, `F0 F1 B0 B1`."""

from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

KIND_OF = {kind.name[0]: kind for kind in PassKind}


def schedule_of(passes: Iterable[Iterable[Pass]]) -> Schedule:
    """The schedule with these passes on every stage."""
    codes = [[len(PassKind) * p.microbatch + p.kind for p in row] for row in passes]
    return Schedule(np.array(codes, np.int32))


def parse_schedule(text: str) -> Schedule:
    """The schedule written as text; blank lines and indentation are ignored."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return schedule_of(map(parse_pass, row) for row in rows)


def parse_pass(text: str) -> Pass:
    return Pass(KIND_OF[text[0]], int(text[1:]))
