"""Contract of every rule that orders passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.splits_backward import splits_backward
from tests.examples.stage_costs import drawn_costs, equal_stages, no_limit, tightest_limit
from tests.oracles.event_simulation import EventSimulation

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.from_config import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Pass,
    PassKind,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate

EVERY_RULE: list[tuple[str, ScheduleRule]] = [
    *RULES.items(),
    *((f"{name}, split", rule) for name, rule in SPLIT_RULES.items()),
]

pytestmark = pytest.mark.parametrize(
    "rule", [rule for _, rule in EVERY_RULE], ids=[name for name, _ in EVERY_RULE]
)


@st.composite
def limits(draw: st.DrawFn) -> tuple[StageCosts, FloatArray]:
    """Costs, and limits of which the smaller ones suffice for one micro-batch only."""
    costs = draw(drawn_costs())
    room = draw(st.lists(st.integers(0, 2000), min_size=5, max_size=5))
    return costs, tightest_limit(costs) + np.array(room[: costs.n_stages], np.float64)


def peaks_by_clock(schedule: Schedule, costs: StageCosts) -> list[float]:
    simulation = EventSimulation(schedule, costs, Link())
    return [max(stage.memory_bytes) for stage in simulation.stages]


@given(costs=drawn_costs())
def test_every_pass_runs_once_and_microbatches_enter_in_order(
    rule: ScheduleRule, costs: StageCosts
) -> None:
    schedule = rule(costs, no_limit(costs))
    kinds = list(PassKind)[: 3 if splits_backward(schedule) else 2]
    every = {Pass(kind, i) for kind in kinds for i in range(costs.n_microbatches)}
    for passes in schedule.passes:
        assert len(passes) == len(every)
        assert set(passes) == every
    entering = [p.microbatch for p in schedule.passes[0] if p.kind is PassKind.FORWARD]
    assert entering == sorted(entering)
    timeline = simulate(schedule, costs, Link(), np.zeros(costs.n_stages))
    assert np.isfinite(timeline.end_ms).all()  # no stage waits for ever


@given(case=limits())
def test_the_limit_is_kept_or_the_rule_says_that_it_cannot(
    rule: ScheduleRule, case: tuple[StageCosts, FloatArray]
) -> None:
    costs, limit = case
    try:
        schedule = rule(costs, limit)
    except InfeasibleScheduleError:
        schedule = rule(costs, no_limit(costs))
        assert (np.array(peaks_by_clock(schedule, costs)) > limit).any()
    else:
        assert (np.array(peaks_by_clock(schedule, costs)) <= limit).all()


@given(costs=drawn_costs())
def test_one_byte_less_than_a_microbatch_needs_alone_is_refused(
    rule: ScheduleRule, costs: StageCosts
) -> None:
    with pytest.raises(InfeasibleScheduleError, match=r"micro-batch .* alone needs .* on stage"):
        rule(costs, tightest_limit(costs) - 1)


def test_what_cannot_run_at_all_is_refused_even_without_a_limit(rule: ScheduleRule) -> None:
    costs = equal_stages([1, 1], n_stages=2, stored_bytes=[1, np.inf])
    with pytest.raises(InfeasibleScheduleError, match="micro-batch 1 alone needs inf bytes"):
        rule(costs, no_limit(costs))
