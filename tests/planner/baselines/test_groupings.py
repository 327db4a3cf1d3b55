"""Baselines at their best settings, in every mode, and how they group samples."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import budget, changed, linear_cost, packed_apart, samples_of
from tests.examples.stage_costs import with_columns

from dynapipe_hpc.data.microbatch import PackedRow, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import (
    MIN_GAIN,
    Baseline,
    balanced_groups,
    budgets,
    deal,
    lower_by_swaps,
    next_fit,
    packed_balanced,
    packed_budgets,
    packed_next_fit,
    packed_work,
    pair_work,
    row_counts,
    small_at_both_ends,
)
from dynapipe_hpc.planner.baselines.config import (
    BaselineConfig,
    NaivePaddingConfig,
    PackedNextFitConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.baselines.padded_rows import naive_padding, token_budget
from dynapipe_hpc.planner.batch.config import DynamicConfig, RecomputeChoice
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.choose.choice import Choice, Chooser, Infeasible
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.schedule.rules import RULES, adaptive, one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

COST = linear_cost(launch_ms=(3.0, 2.0), token_ms=(0.05, 0.04))
TWO_REPLICAS = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**9)
SAMPLES = samples_of([200, 10, 64, 33, 8, 120, 9, 40, 64, 16, 12])


PADDING = NaivePaddingConfig(rule="naive_padding")
BUDGET = TokenBudgetConfig(rule="token_budget")
NEXT_FIT = PackedNextFitConfig(rule="packed_next_fit", tokens_per_microbatch=40)


def planned_by(
    config: BaselineConfig,
    cost: CostModel = COST,
    cluster: Cluster = TWO_REPLICAS,
    rules: Sequence[ScheduleRule] = (one_f_one_b,),
) -> Baseline:
    return Baseline(config, rules, cost, cluster)


def ms_with(config: BaselineConfig) -> float:
    return planned_by(config).choose(SAMPLES).best.iteration_ms


def test_no_power_of_two_is_a_better_budget() -> None:
    assert ms_with(BUDGET) <= min(ms_with(budget(25 * 2**k)) for k in range(8))


UP_TO_64 = [8, 9, 11, 13, 16, 19, 22, 26, 32, 38, 45, 53, 64]


@pytest.mark.parametrize(
    ("settings", "lengths", "n_replicas", "expected"),
    [
        (row_counts, [8], 1, [1]),
        (row_counts, [8] * 3, 1, [1, 2, 3]),
        (row_counts, [8] * 11, 2, [1, 2, 3, 4, 6]),
        (row_counts, [8] * 9, 1, [1, 2, 3, 4, 6, 8, 9]),
        (budgets, [64, 8, 8], 2, [*UP_TO_64, 76, 90, 107, 128]),
        (packed_budgets, [64, 8, 8], 2, UP_TO_64),
        (packed_budgets, [16] * 6, 2, [2, 3, 4, 5, 6, *UP_TO_64[:-2], 48]),
        (packed_budgets, [1, 1], 2, [1]),
    ],
)
def test_settings_reach_all_samples_of_a_replica(
    settings: Callable[..., Iterable[int]],
    lengths: list[int],
    n_replicas: int,
    expected: list[int],
) -> None:
    cluster = TWO_REPLICAS.model_copy(update={"n_replicas": n_replicas})
    assert list(settings(samples_of(lengths), COST, cluster)) == expected


def test_settings_that_do_not_fit_are_left_out() -> None:
    # 2 bytes of a token are kept, and 1 more is needed while it is computed.
    small = Cluster(n_stages=2, device_memory_bytes=3 * 64)
    found = planned_by(PADDING, linear_cost(), small)
    tried = [each.way for each in found.choose(samples_of([32] * 4)).tried]
    assert tried == [f"naive padding, {n} rows, recompute none" for n in (1, 2)]


def test_if_none_fits_the_smallest_is_named() -> None:
    small = Cluster(n_stages=2, device_memory_bytes=100)
    found = planned_by(PADDING, linear_cost(), small)
    with pytest.raises(DoesNotFitError, match="a micro-batch of 1 x 64 tokens"):
        found.choose(samples_of([64] * 4))


THREE = samples_of([40, 16, 80])  # in turns: 40 and 80 to the first replica, 16 to the second


def test_replicas_and_order_are_those_of_the_rule() -> None:
    best = planned_by(NEXT_FIT, linear_cost()).choose(THREE).best
    assert best.way == "packed next fit, 40 tokens, recompute none"
    found = [[m.row_tokens for m in pipeline.microbatches] for pipeline in best.pipelines]
    assert found == [[40, 80], [16]]
    assert {pipeline.rule for pipeline in best.pipelines} == {one_f_one_b}


def test_every_schedule_rule_is_tried() -> None:
    # 1F1B keeps both micro-batches on the first stage, which has room for one of them.
    cluster = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=3 * 80)
    (tried,) = planned_by(NEXT_FIT, linear_cost(), cluster).choose(THREE).tried
    assert isinstance(tried, Infeasible)
    assert tried.reason.startswith("1f1b needs")
    both = planned_by(NEXT_FIT, linear_cost(), cluster, [one_f_one_b, adaptive]).choose(THREE).best
    assert [pipeline.rule for pipeline in both.pipelines] == [adaptive, one_f_one_b]


LENGTHS = [96, 40, 40, 8, 8, 8]


def chooser_of(choice: RecomputeChoice, memory_bytes: int, effort: int = 0) -> Chooser:
    cost = linear_cost(recomputes=True)  # a token keeps 2 bytes, and half a byte if recomputed
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    batch = DynamicConfig(recompute_choice=choice)
    return dynamic_chooser(
        batch, SearchConfig(effort=effort), [RULES["cyclic"]], cost=cost, cluster=cluster
    )


def choose(choice: RecomputeChoice, memory_bytes: int) -> Choice:
    return chooser_of(choice, memory_bytes).choose(samples_of(LENGTHS))


def modes_of(choice: Choice) -> set[Recompute]:
    return {m.recompute for pipeline in choice.pipelines for m in pipeline.microbatches}


def test_a_sample_that_has_to_recompute_makes_all_others_do_so_too() -> None:
    scarce_bytes = 3 * 96 - 1  # the longest sample needs a byte more without recomputation
    each, all_alike = (choose(c, scarce_bytes) for c in ("per_microbatch", "per_iteration"))
    assert modes_of(each) == {Recompute.NONE, Recompute.FULL}
    assert modes_of(all_alike) == {Recompute.FULL}
    assert each.best.makespan_ms < all_alike.best.makespan_ms


def test_candidates_name_their_mode() -> None:
    tried = [c.way for c in choose("per_iteration", 10**6).candidates]
    assert any(way.endswith("recompute none") for way in tried)
    assert any(way.endswith("recompute full") for way in tried)


def test_the_search_keeps_to_the_mode() -> None:
    chooser = chooser_of("per_iteration", 3 * 96 - 1, effort=2_000)
    assert modes_of(chooser.choose(samples_of(LENGTHS))) == {Recompute.FULL}


ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_naive_padding_pads_all_to_the_longest_in_order_of_arrival() -> None:
    samples = samples_of([3, 30, 5, 7, 2])
    (found,) = naive_padding(samples, linear_cost(), ROOMY, 2)
    assert found == [PaddedRows((0, 1), 32), PaddedRows((2, 3), 32), PaddedRows((4,), 32)]


def test_samples_of_alike_length_fill_micro_batches_up_to_the_budget() -> None:
    (found,) = token_budget(samples_of([3, 30, 16, 15, 7, 2, 8]), linear_cost(), ROOMY, 32)
    assert [(m.row_tokens, m.n_rows) for m in found] == [(32, 1), (16, 2), (8, 4)]
    assert all(m.padded_tokens <= 32 for m in found)


def test_only_the_last_bin_is_open_and_what_is_too_large_is_alone() -> None:
    # 4 would fit beside 3 if bins had 7, and the second 1 beside 5 if a bin could open again.
    assert next_fit([3, 4, 2, 6, 1, 5, 1, 9, 2], 6) == [[0], [1, 2], [3], [4, 5], [6], [7], [8]]


def test_samples_lie_end_to_end_in_order_of_arrival() -> None:
    (found,) = packed_next_fit(samples_of([9, 11, 7, 5, 30]), linear_cost(), ROOMY, 20)
    assert found == [
        PackedRow((0, 1), 24, offsets=(0, 9, 20)),
        PackedRow((2, 3), 16, offsets=(0, 7, 12)),
        PackedRow((4,), 32, offsets=(0, 30)),
    ]


def test_the_last_rows_are_split_until_every_replica_has_as_many() -> None:
    replicas = Cluster(n_replicas=4, n_stages=2, device_memory_bytes=10**9)
    found = packed_next_fit(samples_of([8, 8, 8, 8, 8, 24]), linear_cost(), replicas, 24)
    # Rows (0 1 2), (3 4) and (5), of which the second gives its last sample.
    assert [[m.sample_ids for m in replica] for replica in found] == [
        [(0, 1, 2)],
        [(3,)],
        [(5,)],
        [(4,)],
    ]


def test_rows_are_dealt_in_turns() -> None:
    assert deal([[0], [1, 2], [3], [4]], 2) == [[[0], [3]], [[1, 2], [4]]]
    assert deal([[0], [1, 2], [3]], 2) == [[[0], [3]], [[1], [2]]]


def pair_cost(pair_ms: float = 0.0) -> CostModel:
    """Forward and backward times of 1 ms per token and of a time per pair of tokens."""

    def change(shapes: Shapes, costs: StageCosts) -> StageCosts:
        n_rows, row_tokens, *_ = shapes
        pass_ms = (n_rows * (row_tokens + pair_ms * row_tokens**2) / 2)[:, None]
        return with_columns(costs, forward_ms=pass_ms, backward_ms=pass_ms)

    return changed(linear_cost(), change)


def test_work_of_two_sides_is_what_a_second_row_adds_on_all_stages() -> None:
    samples = [Sample(0, 13, 8), Sample(1, 0, 40), Sample(2, 64, 1)]
    launch_ms, token_ms = (5.0, 1.0), (0.25, 0.5)
    cost = linear_cost(launch_ms, token_ms, has_targets=True)
    np.testing.assert_allclose(pair_work(samples, cost), [18.0, 36.0, 54.0])
    unknown = linear_cost(launch_ms, token_ms, has_targets=True, longest_row=20)
    assert pair_work(samples, unknown).tolist() == [21, 41, 65]


@pytest.mark.parametrize("cost", [pair_cost(0.5), packed_apart(pair_cost(), pair_cost(0.5))])
def test_work_of_packed_rows_is_told_from_pairs_by_as_many_tokens_in_shorter_rows(
    cost: CostModel,
) -> None:
    found = packed_work(samples_of([64, 10, 1]), cost)
    assert found == pytest.approx([64 + 0.5 * 64**2, 10 + 0.5 * 10**2, 1.5])


@pytest.mark.parametrize(
    "cost", [linear_cost(launch_ms=(3.0, 5.0)), linear_cost(longest_row=50)], ids=["launch", "hole"]
)
def test_without_pairs_and_where_nothing_was_measured_work_is_tokens(cost: CostModel) -> None:
    tokens = [64, 10, 1]
    found = packed_work(samples_of(tokens), cost)
    assert found / found[-1] == pytest.approx(tokens)


def test_work_of_a_preference_pair_is_of_tokens_that_see_each_other() -> None:
    pair = Sample(0, 20, 30, rejected_tokens=14)
    found = packed_work([pair], pair_cost(pair_ms=0.5))
    seen = 50 * 50 + 2 * 14 * 20 + 14 * 14
    assert found == pytest.approx([64 + 0.5 * seen])


def test_a_long_sample_has_as_much_work_as_many_more_tokens_of_short_ones() -> None:
    samples = samples_of([32, 16, 16, 16, 16])

    def sizes(cost: CostModel) -> list[int]:
        (found,) = packed_balanced(samples, cost, ROOMY, 48)
        return sorted(len(m.sample_ids) for m in found)

    assert sizes(pair_cost()) == [2, 3]  # 48 tokens each
    assert sizes(pair_cost(pair_ms=1e6)) == [1, 4]  # 1,024 pairs each


def test_every_replica_has_as_many_micro_batches_as_the_one_with_the_most_tokens_needs() -> None:
    found = packed_balanced(samples_of([48, 8, 8, 8, 8, 8]), linear_cost(), TWO_REPLICAS, 44)
    # 48 tokens need two, which the one sample of that replica cannot form.
    assert found[0] == [PackedRow((0,), 48, offsets=(0, 48))]
    assert [m.row_tokens for m in found[1]] == [24, 16]


@pytest.mark.parametrize(("tokens", "n"), [(1000, 1), (64, 1), (63, 2), (32, 2), (31, 3), (1, 8)])
def test_there_are_as_many_micro_batches_as_budgets_in_the_tokens(tokens: int, n: int) -> None:
    (found,) = packed_balanced(samples_of([8] * 8), linear_cost(), ROOMY, tokens)
    assert len(found) == n


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12, unique=True))
def test_work_rises_to_the_largest_and_falls_after_it(work: list[int]) -> None:
    order = small_at_both_ends(np.array(work, float))
    assert sorted(order) == list(range(len(work)))
    ordered = [work[i] for i in order]
    top = ordered.index(max(ordered))
    assert ordered[: top + 1] == sorted(ordered[: top + 1])
    assert ordered[top:] == sorted(ordered[top:], reverse=True)
    assert abs(top - (len(work) - 1) / 2) <= 0.5


WORK = st.lists(st.integers(1, 50), min_size=1, max_size=7)


def sums(work: list[int], groups: list[list[int]]) -> list[int]:
    return sorted(sum(work[i] for i in items) for items in groups)


def least_largest(work: list[int], n_groups: int) -> int:
    """By trying every assignment."""
    every = product(range(n_groups), repeat=len(work))
    return min(max(sum(w for w, g in zip(work, a, strict=True) if g == k) for k in range(n_groups))
               for a in every)  # fmt: skip


@given(WORK, st.integers(1, 3))
def test_every_item_is_in_one_group_and_no_group_is_far_too_large(work: list[int], n: int) -> None:
    if len(work) < n:
        return
    groups = balanced_groups(np.array(work, float), n)
    assert sorted(i for items in groups for i in items) == list(range(len(work)))
    assert all(items and items == sorted(items) for items in groups)
    best = least_largest(work, n)
    assert best <= sums(work, groups)[-1] <= best * (4 / 3 - 1 / (3 * n)) + 1e-9


@pytest.mark.parametrize(
    ("work", "n_groups", "best"),
    [
        ([8, 7, 6, 5, 4], 2, [15, 15]),  # differencing alone ends with 14 and 16
        ([5, 5, 5, 4, 4, 3, 3, 1], 3, [10, 10, 10]),
        ([9, 9, 1, 1], 2, [10, 10]),
        ([4, 4, 4], 3, [4, 4, 4]),
    ],
)
def test_small_cases_are_as_even_as_can_be(work: list[int], n_groups: int, best: list[int]) -> None:
    assert sums(work, balanced_groups(np.array(work, float), n_groups)) == best


GROUPED = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 4)), min_size=1, max_size=30)


@given(GROUPED)
def test_swaps_end_where_none_lowers_the_largest_sum(items: list[tuple[int, int]]) -> None:
    work = [w for w, _ in items]
    numbers = sorted({g for _, g in items})
    before = [[i for i, (_, g) in enumerate(items) if g == k] for k in numbers]
    after = lower_by_swaps(np.array(work, float), before)
    assert sums(work, after)[-1] <= sums(work, before)[-1]
    assert [len(group) for group in after] == [len(group) for group in before]
    assert sorted(i for group in after for i in group) == list(range(len(items)))

    largest = max(after, key=lambda group: sum(work[i] for i in group))
    n_largest = sum(work[i] for i in largest)
    for other in after:
        for i, j in product(largest, other if other is not largest else []):
            given = work[i] - work[j]
            larger = max(n_largest - given, sum(work[k] for k in other) + given)
            if sums(work, after).count(n_largest) == 1:
                assert larger >= (1 - MIN_GAIN) * n_largest
