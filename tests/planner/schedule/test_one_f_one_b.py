from textwrap import dedent

import numpy as np
import pytest
from tests.examples.stage_costs import equal_stages, no_limit

from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def picture_of(n_microbatches: int, n_stages: int) -> str:
    costs = equal_stages([1] * n_microbatches, n_stages)
    return str(one_f_one_b(costs, no_limit(costs)))


def test_every_stage_warms_up_once_less_than_the_one_before() -> None:
    assert picture_of(n_microbatches=5, n_stages=3) == dedent("""\
        F0 F1 F2 B0 F3 B1 F4 B2 B3 B4
        F0 F1 B0 F2 B1 F3 B2 F4 B3 B4
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4""")


def test_a_stage_that_would_exceed_its_limit_is_named() -> None:
    costs = equal_stages([1] * 5, n_stages=3)
    message = "1F1B needs 2 bytes of activations on stage 1, where 1 are free .* add 'cyclic'"
    with pytest.raises(InfeasibleScheduleError, match=message):
        one_f_one_b(costs, np.array([3.0, 1.0, 1.0]))
