"""The simulator on cases that can be done by hand, and against a clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.schedule_text import parse_schedule
from tests.examples.splits_backward import splits_backward
from tests.examples.stage_costs import drawn_costs, equal_stages, no_limit, with_columns
from tests.oracles.event_simulation import EventSimulation

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import Cost, StageCosts
from dynapipe_hpc.planner.from_config import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.simulate import ScheduleDeadlockError, simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

INSTANT = Link(latency_ms=0)
TWO_MS = Link(latency_ms=2)


def run(picture: str, costs: StageCosts, link: Link = INSTANT) -> Timeline:
    return simulate(parse_schedule(picture), costs, link, np.zeros(costs.n_stages))


def bars(timeline: Timeline) -> list[str]:
    """A character per ms: the number of the pass in the order of the stage, or a dot."""
    lines = []
    for starts, ends in zip(timeline.start_ms, timeline.end_ms, strict=True):
        line = ["."] * int(timeline.makespan_ms)
        for n, (start, end) in enumerate(zip(starts, ends, strict=True)):
            line[int(start) : int(end)] = str(n) * int(end - start)
        lines.append("".join(line))
    return lines


def test_passes_wait_for_their_input_and_for_their_stage() -> None:
    timeline = run("F0 F1 B0 B1 \n F0 B0 F1 B1", equal_stages([1, 1], n_stages=2))
    assert bars(timeline) == [
        "01..22.33",
        ".011233..",
    ]
    assert timeline.makespan_ms == 9
    assert timeline.busy_ms.tolist() == [6, 6]


def test_a_transfer_takes_latency_and_bandwidth() -> None:
    costs = with_columns(equal_stages([1], n_stages=2), boundary_bytes=600.0)
    timeline = run("F0 B0 \n F0 B0", costs, Link(latency_ms=1, bytes_per_ms=300))
    assert bars(timeline) == [
        "0.........11",
        "....011.....",
    ]
    assert timeline.send_start_ms.tolist()[0][0] == 1
    assert timeline.send_end_ms.tolist()[0][0] == 4


def test_transfers_in_one_direction_wait_for_each_other() -> None:
    timeline = run("F0 F1 B0 B1 \n F0 B0 F1 B1", equal_stages([1, 1], n_stages=2), TWO_MS)
    assert timeline.send_start_ms[0, :2].tolist() == [1, 3]
    assert timeline.send_end_ms[0, :2].tolist() == [3, 5]


@pytest.mark.parametrize(("full_duplex", "second_forward_is_sent_at"), [(True, 17), (False, 19)])
def test_transfers_in_both_directions_wait_for_each_other_without_full_duplex(
    full_duplex: bool, second_forward_is_sent_at: float
) -> None:
    picture = "F0 F1 B0 B1 \n F0 B0 F1 B1 \n F0 B0 F1 B1"
    link = Link(latency_ms=3, full_duplex=full_duplex)
    timeline = run(picture, equal_stages([1, 1], n_stages=3), link)
    assert timeline.end_ms[1, :3].tolist() == [5, 16, 17]
    assert timeline.send_start_ms[1, :3].tolist() == [5, 16, second_forward_is_sent_at]


def test_nothing_is_sent_where_there_is_no_neighbour() -> None:
    timeline = run("F0 B0 \n F0 B0", equal_stages([1], n_stages=2), TWO_MS)
    assert np.isnan(timeline.send_end_ms).tolist() == [[False, True], [True, False]]


def test_a_single_stage_uses_no_link() -> None:
    timeline = run("F0 B0 F1 B1", equal_stages([1, 2], n_stages=1), TWO_MS)
    assert bars(timeline) == ["011223333"]


def test_memory_counts_from_the_start_of_forward_to_the_end_of_backward() -> None:
    costs = equal_stages([1, 1], n_stages=1, stored_bytes=[10, 20])
    static = np.array([5.0])
    kept_together = simulate(parse_schedule("F0 F1 B0 B1"), costs, INSTANT, static)
    one_by_one = simulate(parse_schedule("F0 B0 F1 B1"), costs, INSTANT, static)
    assert kept_together.peak_bytes.tolist() == [35]
    assert one_by_one.peak_bytes.tolist() == [25]


def test_transient_memory_counts_while_its_pass_runs() -> None:
    costs = equal_stages([1, 1], n_stages=1, stored_bytes=[10, 20])
    forward = with_columns(costs, forward_transient_bytes=np.array([[25.0], [4.0]]))
    backward = with_columns(costs, backward_transient_bytes=np.array([[7.0], [0.0]]))
    assert run("F0 F1 B0 B1", forward).peak_bytes.tolist() == [35]
    assert run("F0 F1 B0 B1", backward).peak_bytes.tolist() == [37]


def test_a_split_backward_pass_sends_its_gradient_before_the_weights_have_theirs() -> None:
    timeline = run("F0 B0 W0 \n F0 B0 W0", equal_stages([1], n_stages=2))
    assert bars(timeline) == [
        "0..12",
        ".012.",
    ]
    assert timeline.busy_ms.tolist() == [3, 3]
    assert np.isnan(timeline.send_end_ms[1]).tolist() == [True, False, True]


def test_a_micro_batch_is_kept_until_the_gradients_of_its_weights_are_there() -> None:
    costs = equal_stages([1] * 3, n_stages=1, stored_bytes=[10, 20, 30])
    transient = with_columns(costs, backward_transient_bytes=np.array([[5.0], [9.0], [0.0]]))
    assert run("F0 B0 F1 B1 W0 F2 W1 B2 W2", costs).peak_bytes.tolist() == [50]
    assert run("F0 B0 W0 F1 B1 W1 F2 B2 W2", transient).peak_bytes.tolist() == [30]
    assert run("F0 B0 F1 W0 B1 W1 F2 B2 W2", transient).peak_bytes.tolist() == [35]


def test_the_weights_wait_for_the_backward_pass() -> None:
    with pytest.raises(ScheduleDeadlockError, match="stage 0 waits for the input of W0"):
        run("F0 W0 B0", equal_stages([1], n_stages=1))


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


@given(cases())
def test_full_duplex_is_never_slower(case: tuple[Schedule, StageCosts, Link]) -> None:
    schedule, costs, link = case
    static = np.zeros(costs.n_stages)
    full = simulate(schedule, costs, link.model_copy(update={"full_duplex": True}), static)
    half = simulate(schedule, costs, link.model_copy(update={"full_duplex": False}), static)
    assert full.makespan_ms <= half.makespan_ms


def test_stages_that_wait_for_each_other_are_named() -> None:
    message = "no pass can start: stage 0 waits for the input of B1, stage 1 .* of F1"
    with pytest.raises(ScheduleDeadlockError, match=message):
        run("F0 B1 F1 B0 \n F0 F1 B0 B1", equal_stages([1, 1], n_stages=2))


def test_backward_before_forward_is_a_deadlock() -> None:
    with pytest.raises(ScheduleDeadlockError, match="stage 0 waits for the input of B0"):
        run("B0 F0", equal_stages([1], n_stages=1))


def test_a_pass_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1 of the order must hold .* but has code 0 twice"):
        run("F0 B0 \n F0 F0", equal_stages([1], n_stages=2))


def test_a_microbatch_without_costs_is_refused() -> None:
    with pytest.raises(
        ValueError, match="must hold each of the 2 passes once, but has code 3, which is"
    ):
        run("F1 B1", equal_stages([1], n_stages=1))


def test_a_schedule_with_some_split_backward_passes_is_refused() -> None:
    with pytest.raises(ValueError, match="the 4 passes once, but has code 2, which is none"):
        run("F0 B0 W0 F1", equal_stages([1, 1], n_stages=1))


def test_a_schedule_for_other_costs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"order must have shape \(2, 2\), got \(1, 2\)"):
        run("F0 B0", equal_stages([1], n_stages=2))


def test_the_kernel_copies_nothing_silently() -> None:
    costs = _kernels.CostTable(np.ones((1, 2, len(Cost))))
    order, static = np.array([[0, 1], [0, 1]]), np.zeros(2)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _kernels.simulate(order, costs, static, _kernels.Link(0.0, 1.0, True))
