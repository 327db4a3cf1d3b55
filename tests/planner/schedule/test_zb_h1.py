"""Zero bubble H1 in pictures."""

from textwrap import dedent

import numpy as np
import pytest
from tests.examples.stage_costs import equal_stages, no_limit

from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, InfeasibleScheduleError
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1


def run(costs: StageCosts) -> Timeline:
    return simulate(zb_h1(costs, no_limit(costs)), costs, INSTANT, np.zeros(costs.n_stages))


def test_the_later_a_stage_the_longer_it_puts_off_gradients_of_weights() -> None:
    costs = equal_stages([1] * 5, n_stages=3)
    assert str(zb_h1(costs, no_limit(costs))) == dedent("""\
        F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4
        F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4
        F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4""")


@pytest.mark.parametrize(("n_microbatches", "n_stages"), [(8, 4), (12, 4), (20, 8)])
def test_only_a_pass_per_stage_is_lost_where_1f1b_loses_three(
    n_microbatches: int, n_stages: int
) -> None:
    costs = equal_stages([1] * n_microbatches, n_stages)
    assert run(costs).makespan_ms == 3 * n_microbatches + n_stages - 1
    whole = simulate(one_f_one_b(costs, no_limit(costs)), costs, INSTANT, np.zeros(n_stages))
    assert whole.makespan_ms == 3 * (n_microbatches + n_stages - 1)


def test_a_stage_that_would_exceed_its_limit_is_named() -> None:
    costs = equal_stages([1] * 5, n_stages=3)
    message = "zero bubble H1 needs 3 bytes of activations on stage 1, where 2 are free"
    with pytest.raises(InfeasibleScheduleError, match=message):
        zb_h1(costs, np.array([3.0, 2.0, 3.0]))
