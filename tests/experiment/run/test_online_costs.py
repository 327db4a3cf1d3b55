"""Measurements by which plans are made: of the same iterations on all ranks and after a restart."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, Queue

import numpy as np
import pytest
from tests.examples.example_runs import example_plans, example_traces
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration, TakenPlan
from dynapipe_hpc.experiment.run.online_costs import OnlineCosts
from dynapipe_hpc.experiment.run.plan_ahead import PlanningFacts, StoppedError
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.pass_times import PassTimes, shape_of
from dynapipe_hpc.planner.make_plans import Planner

LOOK_AHEAD = 3


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """Two stages, without a dataset."""
    config = tiny_experiment(n_stages=2)
    config = config.model_copy(
        update={"store": config.store.model_copy(update={"look_ahead": LOOK_AHEAD})}
    )
    experiment = Experiment(config)
    experiment.planner = Planner.from_config(
        config.planner,
        AnalyticConfig(),
        config.model,
        Placement.equal_shares(4, 2),
        cluster=config.cluster,
        max_tokens=32,
    )
    return experiment


def numbers(factor: float) -> Sequence[float]:
    """An iteration in which all passes took longer by a factor."""
    predicted_ms = np.ones(shape_of(2))
    return PassTimes(predicted_ms, predicted_ms * factor, np.ones((1, 2)), np.ones((1, 2))).numbers


def factor_of(online: OnlineCosts, iteration: int) -> float:
    """By what forward passes take longer than estimated."""
    shapes = Shapes.padded(np.ones(1), np.full(1, 8.0), np.zeros(1))
    corrected, plain = (
        each.cost.stage_costs(shapes).forward_ms
        for each in (online.planner(iteration), online._experiment.planner)
    )
    factors = corrected / plain
    assert factors == pytest.approx(factors.flat[0])
    return float(factors.flat[0])


def test_an_iteration_is_planned_by_those_before_the_look_ahead(experiment: Experiment) -> None:
    online = OnlineCosts(experiment, 0)
    known = [1.0]
    for k, factor in enumerate([2.0, 3.0, 5.0, 4.0, 2.5]):
        assert factor_of(online, k + LOOK_AHEAD - 1) == pytest.approx(known[max(0, k - 1)])
        assert factor_of(online, k) == pytest.approx(
            known[max(0, k - LOOK_AHEAD)]
        )  # as it was when it was due
        online.add(numbers(factor))
        times = PassTimes.none(1, 2)
        for each in [2.0, 3.0, 5.0, 4.0, 2.5][: k + 1]:
            times = times.after(PassTimes.from_numbers(numbers(each), 1, 2))
        known.append(float(times.factors.flat[0]))
    assert len(set(known)) == 6


def test_a_run_that_goes_on_plans_as_the_one_that_stopped_would_have(
    experiment: Experiment,
) -> None:
    whole = OnlineCosts(experiment, 0)
    for factor in (2.0, 3.0, 5.0, 4.0, 2.5, 1.7):
        whole.add(numbers(factor))
    again = OnlineCosts(experiment, 6, whole.state)
    for iteration in range(6, 10):
        assert factor_of(again, iteration) == factor_of(whole, iteration)
    for online in (whole, again):
        online.add(numbers(9.0))
    assert factor_of(again, 10) == factor_of(whole, 10)
    assert again.state == whole.state


@pytest.mark.parametrize("earlier", [[], [[1.0, 2.0]], "abc", 7, [None]])
def test_what_is_no_earlier_state_is_not_used(experiment: Experiment, earlier: object) -> None:
    assert factor_of(OnlineCosts(experiment, 6, earlier), 6) == 1.0


def test_planning_waits_for_the_iterations_it_needs_and_ends_when_there_are_no_more(
    experiment: Experiment,
) -> None:
    online = OnlineCosts(experiment, 0)
    planned: Queue[object] = Queue()

    def plan() -> None:
        planned.put(factor_of(online, LOOK_AHEAD + 1))
        try:
            online.planner(LOOK_AHEAD + 2)
        except StoppedError:
            planned.put("stopped")

    thread = threading.Thread(target=plan)
    thread.start()
    with pytest.raises(Empty):
        planned.get(timeout=0.05)
    online.add(numbers(2.0))
    assert planned.get(timeout=10) == 2.0
    online.close()
    assert planned.get(timeout=10) == "stopped"
    thread.join()


def test_the_first_iteration_and_other_shards_do_not_count(experiment: Experiment) -> None:
    online = OnlineCosts(experiment, 4)
    plan, trace = replace(example_plans()[0], iteration=4), example_traces()[0]
    taken = TakenPlan(b"", plan, (), waited_ms=0.0, plans_ahead=0)
    first = ExecutedIteration(taken, trace, 0.0, is_first_shard=True, planning=PlanningFacts())
    later = replace(first, taken=replace(taken, plan=replace(plan, iteration=5)))
    nothing = PassTimes.none(1, 2).numbers
    assert online.pass_times(first) == nothing
    assert online.pass_times(replace(later, is_first_shard=False)) == nothing
    assert sum(online.pass_times(later)) > sum(nothing)
