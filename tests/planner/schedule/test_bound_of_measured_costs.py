"""Bounds of plans made with measurements, in which larger micro-batches sometimes cost less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares, rows_only
from tests.examples.published import COSTS, PROFILES, SHAPES, Family, a100_table

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.rules import schedule_rules

LENGTHS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 200)), min_size=1, max_size=6)


def cost_of(family: Family, is_smoothed: bool, cluster: Cluster) -> CostModel:
    shape = SHAPES[family].model_copy(update={"n_layers": 8})
    placement = equal_shares(shape, cluster)
    return profiled_cost(
        a100_table(family), shape, placement, cluster, config=COSTS, is_smoothed=is_smoothed
    )


@pytest.mark.parametrize("is_smoothed", [True, False])
@pytest.mark.parametrize("family", list(PROFILES))
@pytest.mark.parametrize("split_backward", [False, True])
@given(lengths=LENGTHS, latency_ms=st.sampled_from([0.0, 3.0]), n_stages=st.sampled_from([2, 4]))
@settings(max_examples=15, deadline=None)
def test_no_plan_beats_its_bound(
    family: Family,
    is_smoothed: bool,
    split_backward: bool,
    lengths: list[tuple[int, int]],
    latency_ms: float,
    n_stages: int,
) -> None:
    cluster = Cluster(
        n_stages=n_stages, device_memory_bytes=10**12, link=Link(latency_ms=latency_ms)
    )
    rules = schedule_rules(ScheduleConfig(split_backward=split_backward))
    cost = cost_of(family, is_smoothed, cluster)
    search = BestOfSearch(rules, SearchConfig(effort=3000), cost, cluster)
    planner = Planner(search, cost, cluster, 8, rows_only(cluster), split_backward=split_backward)
    samples = [Sample(i, *sizes) for i, sizes in enumerate(lengths)]
    choice = planner.choose(samples)
    assert planner.lower_bound(choice, samples).iteration_ms <= choice.best.makespan_ms * (1 + 1e-9)
