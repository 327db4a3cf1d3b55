"""The end of an iteration, of two stages by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.examples.linear_cost import linear_cost
from tests.examples.stage_costs import equal_stages, no_limit

from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.fixed_order import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import Timeline, iteration_ms, simulate


def timeline(costs: StageCosts, rule: ScheduleRule = one_f_one_b) -> Timeline:
    schedule = rule(costs, no_limit(costs))
    return simulate(schedule, costs, INSTANT, np.zeros(costs.n_stages))


# Of one micro-batch, the second stage ends after 1 + 1 + 2 ms and the first after 2 more.
@pytest.mark.parametrize(
    ("weights_ms", "expected_ms"),
    [((0.0, 0.0), 6), ((3.0, 3.0), 6 + 3 + 3), ((1.0, 2.0), 6 + 1 + 2), ((1.0, 9.0), 4 + 9 + 9)],
)
def test_a_stage_reduces_while_those_before_it_compute(
    weights_ms: Sequence[float], expected_ms: float
) -> None:
    cost = linear_cost(weights_ms=tuple(weights_ms))
    assert iteration_ms([timeline(equal_stages([1], n_stages=2))], cost) == expected_ms


def test_a_stage_waits_for_the_same_stage_of_all_replicas() -> None:
    replicas = [timeline(equal_stages([ms], n_stages=2)) for ms in (1, 10)]
    assert iteration_ms(replicas, linear_cost(weights_ms=(1.0, 30.0))) == 40 + 30 + 30
