"""The cyclic schedule in pictures, and against the algorithm as the paper prints it."""

from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.stage_costs import (
    drawn_costs,
    equal_stages,
    tightest_limit,
)
from tests.oracles.cyclic_order import cyclic_order

from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def picture_of(stored_bytes: list[int], limit_bytes: list[float]) -> str:
    costs = equal_stages([1] * len(stored_bytes), len(limit_bytes), stored_bytes)
    return str(cyclic(costs, np.array(limit_bytes, np.float64)))


def test_without_a_limit_stages_keep_work_in_store() -> None:
    assert picture_of([1] * 6, [np.inf] * 3) == dedent("""\
        F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5
        F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5""")


@given(drawn_costs(), st.lists(st.integers(0, 30), min_size=5, max_size=5))
def test_the_kernel_agrees_with_the_printed_algorithm(costs: StageCosts, room: list[int]) -> None:
    limit = tightest_limit(costs) + np.array(room[: costs.n_stages])
    assert cyclic(costs, limit) == cyclic_order(costs, limit)


def test_a_microbatch_that_does_not_fit_alone_is_named() -> None:
    costs = equal_stages([1, 1], 2, stored_bytes=[1, 5])
    message = "micro-batch 1 alone needs 5 bytes of activations on stage 1, where 4 are free"
    with pytest.raises(InfeasibleScheduleError, match=message):
        cyclic(costs, np.array([5.0, 4.0]))
