"""The simulator on cases that can be done by hand, and against a clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.stage_costs import (
    drawn_costs,
    equal_stages,
    no_limit,
    parse_schedule,
    splits_backward,
)
from tests.oracles.event_simulation import EventSimulation

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.rules import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.simulate import ScheduleDeadlockError, Timeline, simulate

INSTANT = Link(latency_ms=0)


def run(picture: str, costs: StageCosts, link: Link = INSTANT) -> Timeline:
    return simulate(parse_schedule(picture), costs, link, np.zeros(costs.n_stages))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, StageCosts, Link]:
    costs = draw(drawn_costs())
    rule = draw(st.sampled_from([*RULES.values(), *SPLIT_RULES.values()]))
    link = Link(
        latency_ms=draw(st.integers(0, 5)),
        bytes_per_ms=draw(st.sampled_from([1, 4])),
        full_duplex=draw(st.booleans()),
    )
    return rule(costs, no_limit(costs)), costs, link


@given(cases())
def test_the_kernel_agrees_with_a_clock(case: tuple[Schedule, StageCosts, Link]) -> None:
    schedule, costs, link = case
    expected = EventSimulation(schedule, costs, link)
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    for s, passes in enumerate(schedule.passes):
        for n, p in enumerate(passes):
            assert (timeline.start_ms[s, n], timeline.end_ms[s, n]) == expected.passes_ms[s, p]
            sent = expected.sends_ms.get((s, p), (np.nan, np.nan))
            found = (timeline.send_start_ms[s, n], timeline.send_end_ms[s, n])
            np.testing.assert_array_equal(found, sent)
        assert timeline.peak_bytes[s] == max(expected.stages[s].memory_bytes)
    assert timeline.makespan_ms == max(end for _, end in expected.passes_ms.values())
    work_ms = costs.work_ms + costs.splitting_ms * splits_backward(schedule)
    np.testing.assert_array_equal(timeline.busy_ms, work_ms.sum(axis=0))


def test_stages_that_wait_for_each_other_are_named() -> None:
    message = "no pass can start: stage 0 waits for the input of B1, stage 1 .* of F1"
    with pytest.raises(ScheduleDeadlockError, match=message):
        run("F0 B1 F1 B0 \n F0 F1 B0 B1", equal_stages([1, 1], n_stages=2))


def test_a_pass_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1 of the order must hold .* but has code 0 twice"):
        run("F0 B0 \n F0 F0", equal_stages([1], n_stages=2))
