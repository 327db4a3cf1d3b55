"""A schedule is read and written as a picture, and as numbers."""

import numpy as np
import pytest
from tests.examples.schedule_text import parse_schedule

from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

PICTURE = "F0 F1 B0 B1\nF0 B0 F1 B1"
SPLIT = "F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W0 W1"


def test_a_picture_is_read_stage_by_stage() -> None:
    first = Pass(PassKind.FORWARD, 0), Pass(PassKind.BACKWARD, 0)
    assert parse_schedule("\n  F0 B0\n  F0 B0\n") == Schedule.from_passes((first, first))


@pytest.mark.parametrize("picture", [PICTURE, SPLIT])
def test_a_schedule_is_printed_as_it_is_read(picture: str) -> None:
    assert str(parse_schedule(picture)) == picture


def test_a_pass_is_three_times_its_microbatch_plus_its_kind() -> None:
    codes = parse_schedule(PICTURE).codes
    assert codes.dtype == np.int32
    assert codes.tolist() == [[0, 3, 1, 4], [0, 1, 3, 4]]


@pytest.mark.parametrize("picture", [PICTURE, SPLIT])
def test_numbers_lead_back_to_the_schedule(picture: str) -> None:
    schedule = parse_schedule(picture)
    assert Schedule.from_passes(schedule.passes) == schedule
