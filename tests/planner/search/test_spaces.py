"""The spaces of a search: what is found in one mode by itself, and what no plan can beat."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.examples.measured_layers import T5_SHAPE

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.batch.order import order_samples, orders
from dynapipe_hpc.planner.batch.split import padded_microbatch
from dynapipe_hpc.planner.batch.windows.price_windows import price_layouts, price_windows
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.derived_cost import OneMode
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import find_plan
from dynapipe_hpc.planner.search.space import ConstructedPlan, SearchSpace
from dynapipe_hpc.planner.search.spaces import search_spaces

COST = LinearCost((1.0, 2.0), (0.02, 0.03), recomputes=True)
RULE = [DynamicBatches(0.5)]
TWO_STAGES = Cluster(n_stages=2, device_memory_bytes=10**9)
RATES = AnalyticConfig(flops_per_ms=1e6, memory_bytes_per_ms=1e6)


def spaces_of(
    lengths: Sequence[int], cost: CostModel, cluster: Cluster, *, split_backward: bool = False
) -> list[Mapping[str, SearchSpace]]:
    samples = samples_of(lengths)
    return list(search_spaces(samples, cost, cluster, split_backward=split_backward))


@given(
    st.lists(st.integers(1, 200), min_size=4, max_size=30),
    st.integers(1, 3),
    st.sampled_from([700, 1_000_000]),
    st.booleans(),
)
def test_a_mode_by_itself_is_searched_as_if_there_were_no_other(
    lengths: list[int], n_replicas: int, memory_bytes: int, split_backward: bool
) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)
    config = SearchConfig(effort=12_500)
    _, *alone = spaces_of(lengths, COST, cluster, split_backward=split_backward)
    assert alone
    for spaces in alone:
        (space,) = spaces.values()
        ((_, mode, *_),) = space.windows.modes
        only = OneMode(COST, mode)
        (known,) = spaces_of(lengths, only, cluster, split_backward=split_backward)
        plans, expected = (find_plan(s, config, RULE) for s in (spaces, known))
        for found, others in (
            (plans.searched, expected.searched),
            (plans.by_rules, expected.by_rules),
        ):
            assert [p.microbatches for p in found] == [p.microbatches for p in others]
            assert [p.makespan_ms for p in found] == [p.makespan_ms for p in others]


def test_modes_in_which_not_every_sample_runs_are_no_space() -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=300)
    _, alone = spaces_of([150, 10], COST, cluster)
    only = (ExecutionMode(Layout.PADDED, Recompute.FULL),)
    assert [space.windows.modes for space in alone.values()] == [only]


@pytest.mark.parametrize("rule", [adaptive, adaptive_split])
@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize("memory_bytes", [920, 10**6])
def test_no_plan_of_any_partition_beats_what_none_can_beat(
    memory_bytes: int, draw: int, n_replicas: int, rule: ScheduleRule
) -> None:
    lengths = np.random.default_rng(draw).integers(1, 300, 4).tolist()
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)
    _, *alone = spaces_of(lengths, COST, cluster, split_backward=rule is adaptive_split)
    for spaces in alone:
        (space,) = spaces.values()
        best_ms = shortest_ms(lengths, cluster, rule, space)
        assert space.may_beat(best_ms * (1 + 1e-9))
        assert not space.may_beat(0.5 * best_ms)


def test_where_micro_batches_pass_one_at_a_time_memory_is_what_none_can_beat() -> None:
    cost = LinearCost(launch_ms=(1.0, 1.0), token_ms=(0.01, 0.01))
    cluster = Cluster(n_stages=2, device_memory_bytes=850)  # 280 tokens keep 560, and 280 on top
    (spaces,) = spaces_of([280] * 8, cost, cluster)
    (space,) = spaces.values()
    best_ms = space.construct(1)[0].makespan_ms
    assert best_ms > 8 * 2 * 3.8  # the work of both stages one after the other
    assert not space.may_beat(0.65 * best_ms)
    assert space.may_beat(best_ms)


@pytest.mark.parametrize("rule", [adaptive, adaptive_split])
@pytest.mark.parametrize("lengths", [[300, 10, 10], [10, 240, 200]])
def test_no_plan_ends_before_the_longest_sample_has_gone_there_and_back(
    lengths: list[int], rule: ScheduleRule
) -> None:
    cluster = TWO_STAGES.model_copy(update={"n_replicas": 3})
    _, *alone = spaces_of(lengths, COST, cluster, split_backward=rule is adaptive_split)
    for spaces in alone:
        (space,) = spaces.values()
        ((_, mode, *_),) = space.windows.modes
        longest = padded_microbatch(samples_of([max(lengths)]), mode)
        round_trip_ms = schedule_pipeline([longest], COST, cluster, [rule]).timeline.makespan_ms
        assert space.may_beat(round_trip_ms * (1 + 1e-9))
        assert not space.may_beat(round_trip_ms * (1 - 1e-9))


def shortest_ms(
    lengths: Sequence[int], cluster: Cluster, rule: ScheduleRule, space: SearchSpace
) -> float:
    """Of all cuts of the ordered samples in a space's mode, on all replicas, in all orders."""
    ordered, ((_, mode, *_),) = order_samples(samples_of(lengths)), space.windows.modes
    found_ms = np.inf
    for cuts in product((False, True), repeat=len(lengths) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(lengths)]
        windows = [padded_microbatch(ordered[a:b], mode) for a, b in pairwise(bounds)]
        for order in permutations(windows):
            for owners in product(range(cluster.n_replicas), repeat=len(order)):
                replicas = [
                    [m for m, owner in zip(order, owners, strict=True) if owner == replica]
                    for replica in range(cluster.n_replicas)
                ]
                with suppress(InfeasibleScheduleError):
                    ends_ms = [
                        schedule_pipeline(m, COST, cluster, [rule]).timeline.makespan_ms
                        for m in replicas
                        if m
                    ]
                    found_ms = min(found_ms, max(ends_ms))
    return found_ms


BOTH = (Layout.PADDED, Layout.PACKED)


def test_orders_of_pairs_that_are_alike_are_for_padded_rows_others_for_packed_ones() -> None:
    cost = AnalyticCost(T5_SHAPE, equal_shares(T5_SHAPE, TWO_STAGES), TWO_STAGES, RATES)
    samples = [Sample(i, n, 30 - n) for i, n in enumerate(range(2, 26, 3))]

    def all_better(*arguments: Any, **options: Any) -> list[WindowTable]:
        packed, plain = price_layouts(*arguments, **options)
        return [WindowTable.joined([plain, packed]), plain, packed]

    with patch("dynapipe_hpc.planner.search.spaces.price_layouts", all_better):
        spaces = list(search_spaces(samples, cost, TWO_STAGES, layouts=BOTH, split_backward=False))
    found = [{order: space.windows.modes for order, space in each.items()} for each in spaces[:3]]
    padded, packed = ((ExecutionMode(layout, Recompute.NONE),) for layout in BOTH)
    assert found == [
        {"by input and target": padded + packed, "mixed": packed},
        dict.fromkeys(orders(samples, is_encoder_decoder=True), padded),
        {"by input and target": packed, "mixed": packed},
    ]


def test_long_pairs_share_packed_rows_with_short_ones_where_memory_is_scarce() -> None:
    ample = Cluster(n_stages=1, device_memory_bytes=10**9)
    long, short = Sample(0, 64, 8), Sample(1, 16, 8)

    def costs_on(cluster: Cluster) -> AnalyticCost:
        return AnalyticCost(T5_SHAPE, equal_shares(T5_SHAPE, cluster), cluster, RATES)

    def needed_bytes(*row: Sample) -> int:
        cost = costs_on(ample)
        table = price_windows(row, cost, ample, [Layout.PACKED])
        return int(np.ceil((activation_bytes(table.costs) + cost.static_bytes).max()))

    # A row has room for one long pair and three short ones, so that three rows hold all eleven.
    memory_bytes = needed_bytes(long, *[short] * 3)
    assert memory_bytes < needed_bytes(long, long)
    scarce = Cluster(n_stages=1, device_memory_bytes=memory_bytes)
    samples = [replace(long if i < 3 else short, sample_id=i) for i in range(11)]
    cost, packed = costs_on(scarce), [Layout.PACKED]
    spaces = next(search_spaces(samples, cost, scarce, layouts=packed, split_backward=False))
    fewest = {
        order: min(len(plan.replicas[0]) for plan in space.construct(4))
        for order, space in spaces.items()
    }
    assert fewest == {"by input and target": 4, "mixed": 3}


def test_a_constructed_plan_says_how_it_was_cut_and_balanced() -> None:
    never = float("inf")
    free = ConstructedPlan([], 9.0, 0.15, never, never, balances_fill=False, n_rebalanced=0)
    assert str(free) == "memory price 0.15, by work"
    limited = free._replace(memory_price=0.0, longest_ms=12.3, max_kept_share=0.8 / 3)
    both = "memory price 0, at most 12 ms each, at most 26.7 % of memory each, by work"
    assert str(limited) == both
    again = limited._replace(balances_fill=True, n_rebalanced=2)
    assert str(again) == f"{both} and fill, balanced 2 times more"
