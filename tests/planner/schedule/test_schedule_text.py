"""A schedule is read and written as a picture, and as numbers."""

import numpy as np

from dynapipe_hpc.planner.schedule.pass_codes import decode_passes, encode_passes
from dynapipe_hpc.planner.schedule.schedule_rule import Direction, Pass, Schedule
from dynapipe_hpc.planner.schedule.text import format_schedule, parse_schedule

PICTURE = "F0 F1 B0 B1\nF0 B0 F1 B1"


def test_a_picture_is_read_stage_by_stage() -> None:
    first = Pass(Direction.FORWARD, 0), Pass(Direction.BACKWARD, 0)
    assert parse_schedule("\n  F0 B0\n  F0 B0\n") == Schedule((first, first))


def test_a_schedule_is_printed_as_it_is_read() -> None:
    assert format_schedule(parse_schedule(PICTURE)) == PICTURE


def test_a_pass_is_two_times_its_microbatch_plus_its_direction() -> None:
    codes = encode_passes(parse_schedule(PICTURE))
    assert codes.dtype == np.int32
    assert codes.tolist() == [[0, 2, 1, 3], [0, 1, 2, 3]]


def test_numbers_lead_back_to_the_schedule() -> None:
    schedule = parse_schedule(PICTURE)
    assert decode_passes(encode_passes(schedule)) == schedule
