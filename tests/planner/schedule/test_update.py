"""The end of an iteration, of two stages by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost
from tests.examples.stage_costs import drawn_costs, equal_stages, no_limit

from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.update import iteration_ms


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


@pytest.mark.parametrize("rule", [one_f_one_b, adaptive, adaptive_split])
@given(costs=drawn_costs(), data=st.data())
def test_no_update_is_shorter_than_the_least(
    rule: ScheduleRule, costs: StageCosts, data: st.DataObject
) -> None:
    n = costs.n_stages
    weights_ms = data.draw(st.lists(st.integers(0, 50).map(float), min_size=n, max_size=n))
    cost = linear_cost(weights_ms=tuple(weights_ms), launch_ms=(1.0,) * n)
    ran = timeline(costs, rule)
    # Unless backward passes are split, the last pass is on the first stage.
    reduce_ms = min(weights_ms) if rule is adaptive_split else weights_ms[0]
    least_ms = ran.makespan_ms + reduce_ms
    assert iteration_ms([ran], cost) >= least_ms
