from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.authors.authors import AuthorsPlanner
from tests.examples.linear_cost import budget, linear_cost, samples_of

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline, OneModeSearch
from dynapipe_hpc.planner.baselines.config import PackedBalancedConfig
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.rules import adaptive, one_f_one_b

COST = linear_cost(recomputes=True)
SCHEDULE_RULES = [one_f_one_b, adaptive]


def search(cluster: Cluster, cost: CostModel = COST) -> Chooser:
    config = SearchConfig(effort=7_000)
    return BestOfSearch(SCHEDULE_RULES, config, cost, cluster)


def one_mode(cluster: Cluster) -> Chooser:
    return OneModeSearch(lambda cost: search(cluster, cost), COST)


def baseline(cluster: Cluster) -> Chooser:
    return Baseline(budget(128), SCHEDULE_RULES, COST, cluster)


def tuned(cluster: Cluster) -> Chooser:
    return Baseline(PackedBalancedConfig(rule="packed_balanced"), SCHEDULE_RULES, COST, cluster)


def authors(cluster: Cluster) -> Chooser:
    return AuthorsPlanner.with_interval(COST, cluster, 0)


CHOOSERS = [search, one_mode, baseline, tuned, authors]
every_chooser = pytest.mark.parametrize("chooser_for", CHOOSERS)


@every_chooser
@given(
    lengths=st.lists(st.integers(1, 200), min_size=2, max_size=20),
    n_replicas=st.integers(1, 2),
    memory_bytes=st.integers(200, 3000),
)
@settings(max_examples=20)
def test_every_plan_runs_every_sample_once_within_memory_or_there_is_a_reason(
    chooser_for: Callable[[Cluster], Chooser],
    lengths: list[int],
    n_replicas: int,
    memory_bytes: int,
) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)
    try:
        choice = chooser_for(cluster).choose(samples_of(lengths))
        assert choice.best in choice.candidates
    except InputError:
        return
    for candidate in choice.candidates:
        assert len(candidate.pipelines) == n_replicas
        assert max(p.timeline.peak_bytes.max() for p in candidate.pipelines) <= memory_bytes
        run = [i for p in candidate.pipelines for m in p.microbatches for i in m.sample_ids]
        assert sorted(run) == list(range(len(lengths)))
