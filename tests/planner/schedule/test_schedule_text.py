"""A schedule is read and written as a picture, and as numbers."""

import numpy as np
import pytest
from tests.examples.schedule_text import parse_schedule

PICTURE = "F0 F1 B0 B1\nF0 B0 F1 B1"
SPLIT = "F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W0 W1"


@pytest.mark.parametrize("picture", [PICTURE, SPLIT])
def test_a_schedule_is_printed_as_it_is_read(picture: str) -> None:
    assert str(parse_schedule(picture)) == picture


def test_a_pass_is_three_times_its_microbatch_plus_its_kind() -> None:
    codes = parse_schedule(PICTURE).codes
    assert codes.dtype == np.int32
    assert codes.tolist() == [[0, 3, 1, 4], [0, 1, 3, 4]]
