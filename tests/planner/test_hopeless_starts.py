"""Which modes are not searched, as all plans to begin with are far behind those of others."""

import numpy as np
import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import Found, find_plan
from dynapipe_hpc.planner.search.spaces import search_spaces

COST = LinearCost((1.0,) * 8, (0.02,) * 8, recomputes=True)
# Not enough for eight micro-batches in flight, unless some are recomputed.
CLUSTER = Cluster(n_stages=8, device_memory_bytes=740)
SAMPLES = samples_of([50] * 48)
RULE = [DynamicBatches(1 / 16)]
CONFIG = SearchConfig(effort=0)


def found_below(hopeless_ms: float) -> Found:
    spaces = next(search_spaces(SAMPLES, COST, CLUSTER, split_backward=False))
    return find_plan(spaces, CONFIG, RULE, hopeless_ms)


def test_a_search_begins_with_the_best_plan_that_is_constructed_or_by_a_rule() -> None:
    ample = Cluster(n_stages=2, device_memory_bytes=10**7)
    cost = LinearCost((1.0,) * 2, (0.02,) * 2)
    spaces = next(search_spaces(samples_of([8] * 46), cost, ample, split_backward=False))
    found = find_plan(spaces, CONFIG, RULE)
    (constructed,) = found.constructed.values()
    assert found.start_ms == min(plan.makespan_ms for plan in found.by_rules)
    assert found.start_ms < constructed[0].makespan_ms
    of_none = find_plan(spaces, CONFIG)
    assert of_none.start_ms == constructed[0].makespan_ms == of_none.searched[0].makespan_ms


def test_nothing_is_searched_if_it_begins_far_behind() -> None:
    alone = found_below(float("inf"))
    near = found_below(alone.start_ms)
    far = found_below(0.999 * alone.start_ms)
    assert [plan.makespan_ms for plan in near.searched] == [
        plan.makespan_ms for plan in alone.searched
    ]
    assert len(near.by_rules) == len(alone.by_rules) > 0
    assert not far.searched
    assert not far.by_rules
    assert far.start_ms == alone.start_ms
    assert far.constructed.keys() == alone.constructed.keys()


@pytest.mark.parametrize(
    ("rules", "without"), [(["1f1b"], 1), (["adaptive"], 0), (["1f1b", "adaptive"], 0)]
)
def test_a_hopeless_mode_is_left_out_where_schedules_adapt(
    rules: list[RuleName], without: int
) -> None:
    search = BestOfSearch([], [RULES[rule] for rule in rules], CONFIG, COST, CLUSTER)
    modes = [each.way.partition("recompute ")[2] for each in search.choose(SAMPLES).tried]
    assert modes.count("none") == without
    assert {"none, full", "full"} <= set(modes)


def test_a_mode_is_compared_with_the_best_start_and_not_with_the_last() -> None:
    layouts = [Layout.PADDED, Layout.PACKED]
    search = BestOfSearch([], [RULES["adaptive"]], CONFIG, COST, CLUSTER, layouts)
    modes = [each.way.partition("recompute ")[2] for each in search.choose(SAMPLES).tried]
    # Of two layouts each; without recomputation both are far behind.
    assert modes.count("none") == 0
    assert modes.count("full") == 2


def test_pairs_begin_in_the_best_of_their_orders() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, (40, 2)).tolist()
    pairs = [Sample(i, *both) for i, both in enumerate(lengths)]
    cost = LinearCost((1.0, 2.0), (0.02, 0.03), has_targets=True)
    cluster = Cluster(n_stages=2, device_memory_bytes=10**6)
    found = find_plan(next(search_spaces(pairs, cost, cluster, split_backward=False)), CONFIG)
    plainest_ms, *others_ms = (best.makespan_ms for best, *_ in found.constructed.values())
    assert found.start_ms == min(others_ms) < plainest_ms
