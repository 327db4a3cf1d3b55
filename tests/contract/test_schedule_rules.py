import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.stage_costs import drawn_costs, no_limit, splits_backward, tightest_limit

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import check_peaks
from dynapipe_hpc.planner.schedule.rules import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Pass,
    PassKind,
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
def test_the_limit_is_kept_or_the_order_is_fixed_and_refused(
    rule: ScheduleRule, case: tuple[StageCosts, FloatArray]
) -> None:
    costs, limit = case
    schedule = rule(costs, limit)
    peaks = simulate(schedule, costs, Link(), np.zeros(costs.n_stages)).peak_bytes
    if (peaks > limit).any():
        assert schedule == rule(costs, no_limit(costs))
        with pytest.raises(InfeasibleScheduleError, match="a rule needs"):
            check_peaks("a rule", peaks + limit.max() - limit, int(limit.max()))
    else:
        check_peaks("a rule", peaks + limit.max() - limit, int(limit.max()))
