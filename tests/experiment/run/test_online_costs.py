"""Measurements by which plans are made: of the same iterations on all ranks and after a restart."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, Queue

import numpy as np
import pytest
from tests.examples.example_plans import parse_grid, rows_of
from tests.examples.example_runs import example_plans, example_traces
from tests.examples.linear_cost import linear_cost
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Layout, PaddedRows, Recompute
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.plans import OnlineCosts, SlowRanks, StoppedError, measured_passes
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.pass_times import PassTimes, shape_of
from dynapipe_hpc.planner.make_plans import Planner

LOOK_AHEAD = 3


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """Two stages, without a dataset."""
    config = with_keys(tiny_experiment(n_stages=2), store={"look_ahead": LOOK_AHEAD})
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
    later = replace(plan, iteration=5)
    nothing = tuple(PassTimes.none(1, 2).numbers)
    assert online.pass_times(plan, trace, True) == nothing
    assert online.pass_times(later, trace, False) == nothing
    assert sum(online.pass_times(later, trace, True)) > sum(nothing)


CLUSTER = Cluster(n_replicas=2, n_stages=2, n_shards=2, device_memory_bytes=1)
EVEN = np.array([[1.3, 0.7], [1.3, 0.7]])


def lines(*iterations: float) -> list[tuple[int, str]]:
    """Warnings about stage 1 of replica 0 at each iteration after twenty usual ones."""
    slow_ranks, found = SlowRanks(CLUSTER), []
    for i, now in enumerate([1.0] * 20 + list(iterations)):
        of_ranks = EVEN.copy()
        of_ranks[0, 1] *= now
        found += [(i - 20, line) for line in slow_ranks.add(of_ranks)]
    return found


def test_a_rank_that_becomes_slow_is_named_and_so_is_its_recovery() -> None:
    assert lines(1.1, 1.3, 1.5, *[1.5] * 200, 1.15, 1.05, 1.0) == [
        (1, "rank 2 (stage 1 of replica 0) takes 1.30 times as long as usual for its passes"),
        (204, "rank 2 (stage 1 of replica 0) takes as long as usual again for its passes"),
    ]


def test_a_rank_that_was_slow_from_the_start_is_told_by_its_peers() -> None:
    slow_ranks = SlowRanks(CLUSTER)
    said = [line for _ in range(40) for line in slow_ranks.add(EVEN * [[1.0, 1.5], [1.0, 1.0]])]
    assert said == [
        "rank 2 (stage 1 of replica 0) takes 1.50 times as long as usual for its passes"
    ]


def test_a_rank_without_peers_is_compared_with_itself_however_long_it_is_slow() -> None:
    slow_ranks = SlowRanks(CLUSTER.model_copy(update={"n_replicas": 1}))
    took = [2.0] * 30 + [3.0] * 300 + [2.0] * 10
    said = [slow_ranks.add(np.array([[1.0, each]])) for each in took]
    assert [i for i, each in enumerate(said) if each] == [30, 330]


# A pass of 48 tokens through stage 1 takes (5 + 48 / 2) / 2 = 14.5 ms, half of a backward pass for
# gradients of weights; with recomputation, a backward pass takes twice as long.
COST = linear_cost(launch_ms=(10.0, 5.0), token_ms=(1.0, 0.5), recomputes=True)
SPLIT = rows_of(parse_grid("rank 0 | L0 F0 L1 F1 I0 I1 W1 W0 step")[0])


def test_a_whole_backward_pass_counts_for_both_of_its_parts() -> None:
    plan, trace = example_plans()[1], example_traces()[1]
    passes = measured_passes(plan, trace, COST, np.full(shape_of(2), 2.0), n_replicas=1)
    at = np.s_[Layout.PADDED, Recompute.NONE, 1]
    assert passes.measured_ms[at].tolist() == [16.0, 8.0, 8.0]  # with 8 ms for its tokens
    assert passes.predicted_ms[at] == pytest.approx([14.5, 14.5, 14.5])
    assert passes.measured_ms.sum() == 32.0
    assert passes.taken_ms.tolist() == [[0.0, 32.0]]
    assert passes.expected_ms == pytest.approx(np.array([[0.0, 2 * 3 * 14.5]]))


def test_halves_of_backward_passes_count_for_one_part_each_in_their_own_way() -> None:
    """The second micro-batch recomputes: 29 ms backward, and 7.25 of them for weights."""
    padded, full = PaddedRows((0,), 48), PaddedRows((1,), 48, recompute=Recompute.FULL)
    plan = replace(example_plans()[1], microbatches=(padded, full), instructions=SPLIT)
    ends = (1.0, 3.0, 4.0, 8.0, 13.0, 23.0, 24.0, 44.0, 50.0)
    trace = replace(example_traces()[1], start_ms=(0.0, *ends[:-1]), end_ms=ends)
    passes = measured_passes(plan, trace, COST, np.ones(shape_of(2)), n_replicas=1)
    of_stage = np.s_[Layout.PADDED, :, 1]
    assert passes.measured_ms[of_stage].tolist() == [[3, 5, 20], [0, 0, 0], [5, 10, 1]]
    predicted_ms = [[14.5, 7.25, 7.25], [0, 0, 0], [14.5, 29 - 7.25, 7.25]]
    assert passes.predicted_ms[of_stage] == pytest.approx(np.array(predicted_ms))
    assert passes.predicted_ms[:, :, 0].max() == 0.0
