"""Plans of balanced packed rows beside those of a search."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.also_balanced import AlsoBalanced
from dynapipe_hpc.planner.baselines.as_assigned import AsAssigned
from dynapipe_hpc.planner.baselines.packed.packed_balanced import PackedBalanced
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig

RULES = schedule_rules(ScheduleConfig())
WAITS_FOR_LAUNCHES = LinearCost(launch_ms=(3.0, 3.0), token_ms=(0.01, 0.02))
CLUSTER = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**6)
SAMPLES = samples_of([90, 70, 50, 33, 31, *range(4, 28)])


class NoHurry:
    """A chooser that runs every sample alone, on the first replica but for the last."""

    def __init__(self, cost: LinearCost) -> None:
        self._rule = AsAssigned(PackedBalanced(1), RULES, cost, CLUSTER)

    def choose(self, samples: Sequence[Sample]) -> Choice:
        return self._rule.choose(samples)


def tried(cost: LinearCost, cluster: Cluster = CLUSTER) -> list[Candidate]:
    return AlsoBalanced(NoHurry(cost), RULES, cost, cluster).choose(SAMPLES).candidates


def ids(candidate: Candidate) -> Iterator[int]:
    for pipeline in candidate.pipelines:
        for microbatch in pipeline.microbatches:
            yield from microbatch.sample_ids


def test_larger_micro_batches_are_added_and_run_every_sample_once() -> None:
    slow, *added = tried(WAITS_FOR_LAUNCHES)
    assert len(added) == 2
    for candidate in added:
        assert candidate.iteration_ms < slow.iteration_ms
        assert Counter(ids(candidate)) == Counter(sample.sample_id for sample in SAMPLES)
    # Launches take most of the time, so that the fewest are best.
    assert [len(candidate.pipelines[0].microbatches) for candidate in added] == [2, 3]


def test_nothing_is_added_where_large_micro_batches_are_not_cheap() -> None:
    assert len(tried(LinearCost(launch_ms=(0.0, 0.0)))) == 1


def test_nothing_is_added_that_does_not_fit() -> None:
    full = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=300)
    assert len(tried(WAITS_FOR_LAUNCHES, full)) == 1


def test_what_cannot_be_better_is_not_scheduled() -> None:
    best = min(tried(WAITS_FOR_LAUNCHES), key=lambda candidate: candidate.iteration_ms)

    class Best:
        def choose(self, _samples: Sequence[Sample]) -> Choice:
            return Choice((best,))

    chooser = AlsoBalanced(Best(), RULES, WAITS_FOR_LAUNCHES, CLUSTER)
    choice = chooser.choose(SAMPLES)
    assert choice.best is best
    assert len(choice.tried) < 3


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
