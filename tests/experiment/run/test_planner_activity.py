"""Activity of a planner, as the trace of an iteration shows it."""

import threading
import time
from dataclasses import replace

import pytest
from tests.examples.example_runs import example_plans, example_traces

from dynapipe_hpc.executor.trace import Span
from dynapipe_hpc.experiment.run import plan_ahead
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration, TakenPlan
from dynapipe_hpc.experiment.run.plan_ahead import PlannerActivity, PlanningFacts


class Clock:
    """Seconds as a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(plan_ahead, "time", clock)
    return clock


def act(activity: PlannerActivity, clock: Clock, label: str, end_s: float) -> None:
    with activity.doing(label):
        clock.now_s = end_s


def test_what_an_iteration_overlaps_is_cut_to_it(clock: Clock) -> None:
    activity = PlannerActivity()
    for label, end_s in (("before", 1.0), ("first", 3.0), ("second", 4.0), ("third", 9.0)):
        act(activity, clock, label, end_s)
    expected = (
        Span("first", 0.0, 1000.0), Span("second", 1000.0, 2000.0), Span("third", 2000.0, 3000.0)
    )  # fmt: skip
    assert activity.between(2.0, 5.0) == expected
    assert activity.between(9.0, 10.0) == ()


def test_what_is_not_over_yet_lasts_until_the_end(clock: Clock) -> None:
    activity = PlannerActivity()
    act(activity, clock, "over", 2.0)
    with activity.doing("plan 3"):
        clock.now_s = 7.0
        assert activity.between(1.0, 5.0) == (
            Span("over", 0.0, 1000.0),
            Span("plan 3", 1000.0, 4000.0),
        )
    assert activity.between(1.0, 8.0)[1:] == (Span("plan 3", 1000.0, 6000.0),)


def test_what_failed_is_over(clock: Clock) -> None:
    activity = PlannerActivity()
    with pytest.raises(ValueError, match="no plan"), activity.doing("plan 0"):
        clock.now_s = 1.0
        raise ValueError("no plan")
    clock.now_s = 2.0
    assert activity.between(0.0, 5.0) == (Span("plan 0", 0.0, 1000.0),)


def test_an_iteration_that_is_traced_shows_what_was_done_beside_it(clock: Clock) -> None:
    activity = PlannerActivity()
    act(activity, clock, "plan 8", 5.0)
    (plan, _), (trace, _) = example_plans(0), example_traces(0)
    begun_s = 5.0 - 1e-3  # a millisecond of the planning lies in the iteration
    taken = TakenPlan(b"bytes", plan, (), waited_ms=0.0, plans_ahead=0)
    executed = ExecutedIteration(
        taken, trace, begun_s, is_first_shard=True, planning=PlanningFacts()
    )
    found = executed.rank_trace(activity)
    assert found.data == b"bytes"
    assert replace(found.trace, planning=()) == trace
    [span] = found.trace.planning
    assert (span.label, span.start_ms) == ("plan 8", 0.0)
    assert span.end_ms == pytest.approx(1.0)
    clock.now_s = begun_s + 1e-3 * max(trace.end_ms)
    act(activity, clock, "after its end", 9.0)
    assert len(executed.rank_trace(activity).trace.planning) == 1


def test_nothing_is_told_twice_while_the_thread_goes_on() -> None:
    activity = PlannerActivity()
    over = threading.Event()

    def act_on() -> None:
        n = 0
        while not over.is_set():
            with activity.doing(str(n)):
                n += 1

    begun_s = time.perf_counter()
    thread = threading.Thread(target=act_on)
    thread.start()
    try:
        for _ in range(300):
            labels = [span.label for span in activity.between(begun_s, time.perf_counter())]
            assert len(set(labels)) == len(labels)
    finally:
        over.set()
        thread.join()
