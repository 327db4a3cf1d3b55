"""Plans of balanced packed rows beside those of a search."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.as_assigned import AsAssigned
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.packed_balanced import PackedBalanced
from dynapipe_hpc.planner.choose import also_balanced
from dynapipe_hpc.planner.choose.also_balanced import AlsoBalanced
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import OneMode
from dynapipe_hpc.planner.cost.function_cost import FunctionCost
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig

RULES = schedule_rules(ScheduleConfig())
WAITS_FOR_LAUNCHES = LinearCost(launch_ms=(3.0, 3.0), token_ms=(0.01, 0.02))
CLUSTER = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**6)
SAMPLES = samples_of([90, 70, 50, 33, 31, *range(4, 28)])


class NoHurry:
    """A chooser that makes as many micro-batches as it can."""

    def __init__(self, cost: CostModel, cluster: Cluster) -> None:
        self._rule = AsAssigned(PackedBalanced(1), RULES, cost, cluster)

    def choose(self, samples: Sequence[Sample]) -> Choice:
        return self._rule.choose(samples)


def tried(cost: LinearCost, search: Chooser, cluster: Cluster = CLUSTER) -> list[Candidate]:
    return AlsoBalanced(search, RULES, cost, cluster).choose(SAMPLES).candidates


def ids(candidate: Candidate) -> Iterator[int]:
    for pipeline in candidate.pipelines:
        for microbatch in pipeline.microbatches:
            yield from microbatch.sample_ids


@pytest.mark.parametrize("launch_ms", [0.1, 0.3, 1.0, 3.0])
def test_the_best_size_is_added_and_runs_every_sample_once(launch_ms: float) -> None:
    cost = LinearCost(launch_ms=(launch_ms, launch_ms), token_ms=(0.01, 0.02))
    slow, added = tried(cost, NoHurry(cost, CLUSTER))
    assert added.iteration_ms < slow.iteration_ms
    assert Counter(ids(added)) == Counter(sample.sample_id for sample in SAMPLES)
    rules = (AsAssigned(PackedBalanced(n), RULES, cost, CLUSTER) for n in range(10, 400, 5))
    best_ms = min(rule.choose(SAMPLES).best.iteration_ms for rule in rules)
    assert added.iteration_ms <= 1.02 * best_ms


def test_no_rows_are_formed_that_would_be_behind() -> None:
    faster = LinearCost(launch_ms=(1.5, 1.5), token_ms=(0.005, 0.01))
    search = chooser_of({"layouts": ["padded"]}, faster)
    with patch.object(also_balanced, "PackedBalanced", side_effect=AssertionError):
        assert tried(WAITS_FOR_LAUNCHES, search)


@pytest.mark.parametrize("n_samples", [211, 224, 416])
def test_where_time_rises_in_a_step_the_best_number_is_found(n_samples: int) -> None:
    """Rows below 4,096 tokens take as long as those; the search is a few per cent behind."""
    cost = FunctionCost(lambda n, t: max(5.2, 5.2 * n * t / 4096), stage_shares=(0.25,) * 4)
    cluster, samples = Cluster(n_stages=4, device_memory_bytes=10**9), samples_of([128] * n_samples)

    def of_size(n_tokens: int) -> AsAssigned:
        return AsAssigned(PackedBalanced(n_tokens), RULES, cost, cluster)

    sizes = sorted({-(-128 * n_samples // count) for count in range(1, 40)})
    times = {n_tokens: of_size(n_tokens).choose(samples).best.iteration_ms for n_tokens in sizes}
    best_ms = min(times.values())
    behind = min((ms, n_tokens) for n_tokens, ms in times.items() if ms > 1.01 * best_ms)[1]
    choice = AlsoBalanced(of_size(behind), RULES, cost, cluster).choose(samples)
    assert choice.best.iteration_ms <= 1.001 * best_ms


class SlowReplica(LinearCost):
    """The second replica takes twice as long."""

    @property
    def slowness(self) -> FloatArray:  # type: ignore[override]
        return np.array([[1.0, 1.0], [2.0, 2.0]])


def test_replicas_of_different_speed_are_left_to_the_search() -> None:
    cost = SlowReplica(launch_ms=(3.0, 3.0))
    assert len(tried(cost, NoHurry(cost, CLUSTER))) == 1


def test_no_rows_are_formed_where_the_longest_sample_alone_takes_longer() -> None:
    cost = LinearCost(token_ms=(1.0, 1.0))
    search = chooser_of({"layouts": ["padded"]}, replace(cost, token_ms=(0.6, 0.6)))
    samples = samples_of([900, *[10] * 20])
    with patch.object(also_balanced, "PackedBalanced", side_effect=AssertionError):
        choice = AlsoBalanced(search, RULES, cost, CLUSTER).choose(samples)
    assert choice.candidates


def test_nothing_is_added_that_does_not_fit() -> None:
    cost = LinearCost(launch_ms=(3.0, 3.0), token_bytes=40.0, recomputes=True)
    cluster = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=3000)
    search = NoHurry(OneMode(cost, Recompute.FULL), cluster)
    assert len(tried(replace(cost, recomputes=False), search, cluster)) == 1


def test_the_mode_is_the_least_in_which_all_micro_batches_fit() -> None:
    cost = LinearCost(launch_ms=(3.0, 3.0), token_bytes=40.0, recomputes=True)
    for n_bytes, mode in ((10**6, Recompute.NONE), (3000, Recompute.FULL)):
        cluster = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=n_bytes)
        search = NoHurry(OneMode(cost, mode), cluster)
        _, added = tried(cost, search, cluster)
        assert {m.recompute for pipeline in added.pipelines for m in pipeline.microbatches} == {
            mode
        }


class LongRowsRecompute(LinearCost):
    """Rows of more than 64 tokens are not known without recomputation."""

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        longest = 64 if recompute is Recompute.NONE else 10**6
        cost = LinearCost(self.launch_ms, longest_row=longest, recomputes=True)
        return cost.stage_costs(shapes, recompute, out)


def test_a_mode_in_which_the_longest_sample_is_not_known_is_passed_over() -> None:
    cost = LongRowsRecompute(launch_ms=(3.0, 3.0), recomputes=True)
    _, added = tried(cost, NoHurry(OneMode(cost, Recompute.FULL), CLUSTER))
    assert added.way.endswith("recompute full")


def chooser_of(settings: dict[str, object], cost: LinearCost = WAITS_FOR_LAUNCHES) -> Chooser:
    batch = DynamicConfig.model_validate({"rule": "dynamic", "layouts": ["packed"]} | settings)
    return dynamic_chooser(batch, SearchConfig(effort=1), RULES, cost=cost, cluster=CLUSTER)


@pytest.mark.parametrize(
    "settings", [{"layouts": ["padded"]}, {"slices": 64}, {"token_multiple": 16}]
)
def test_rows_that_are_not_to_be_balanced_are_not(settings: dict[str, object]) -> None:
    assert isinstance(chooser_of(settings), BestOfSearch)


def test_rows_of_two_sides_are_not_balanced() -> None:
    assert isinstance(chooser_of({}, LinearCost(has_targets=True)), BestOfSearch)


def test_a_search_among_packed_rows_is_no_slower_than_balanced_ones() -> None:
    found_ms = chooser_of({}).choose(SAMPLES).best.iteration_ms
    for n_tokens in range(80, 400, 20):
        rule = AsAssigned(PackedBalanced(n_tokens), RULES, WAITS_FOR_LAUNCHES, CLUSTER)
        assert found_ms <= rule.choose(SAMPLES).best.iteration_ms
