"""Baselines at their best settings, in every mode."""

from collections.abc import Sequence

import pytest
from tests.examples.linear_cost import budget, linear_cost, naive, samples_of

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline, budgets, packed_budgets, row_counts
from dynapipe_hpc.planner.baselines.config import (
    BaselineConfig,
    NaivePaddingConfig,
    PackedNextFitConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.config import DynamicConfig, RecomputeChoice
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.choose.choice import Choice, Chooser, Infeasible
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.fixed_order import one_f_one_b
from dynapipe_hpc.planner.schedule.rules import RULES
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

COST = linear_cost(launch_ms=(3.0, 2.0), token_ms=(0.05, 0.04))
ROOMY = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**9)
SAMPLES = samples_of([200, 10, 64, 33, 8, 120, 9, 40, 64, 16, 12])


PADDING = NaivePaddingConfig(rule="naive_padding")
BUDGET = TokenBudgetConfig(rule="token_budget")
NEXT_FIT = PackedNextFitConfig(rule="packed_next_fit", tokens_per_microbatch=40)


def planned_by(
    config: BaselineConfig,
    cost: CostModel = COST,
    cluster: Cluster = ROOMY,
    rules: Sequence[ScheduleRule] = (one_f_one_b,),
) -> Baseline:
    return Baseline(config, rules, cost, cluster)


def ms_with(config: BaselineConfig) -> float:
    return planned_by(config).choose(SAMPLES).best.iteration_ms


def test_the_best_of_every_number_of_rows_is_found() -> None:
    # Row counts of 1, 2, 3, 4 and 6 are all there are that differ for 11 samples on 2 replicas.
    assert ms_with(PADDING) == min(ms_with(naive(n)) for n in (1, 2, 3, 4, 6))


def test_no_power_of_two_is_a_better_budget() -> None:
    assert ms_with(BUDGET) <= min(ms_with(budget(25 * 2**k)) for k in range(8))


@pytest.mark.parametrize(
    ("n_samples", "n_replicas", "expected"),
    [(1, 1, [1]), (3, 1, [1, 2, 3]), (11, 2, [1, 2, 3, 4, 6]), (9, 1, [1, 2, 3, 4, 6, 8, 9])],
)
def test_row_counts_reach_all_samples_of_a_replica(
    n_samples: int, n_replicas: int, expected: list[int]
) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=1, device_memory_bytes=1)
    assert list(row_counts(samples_of([8] * n_samples), COST, cluster)) == expected


def test_budgets_reach_all_samples_of_a_replica() -> None:
    found = list(budgets(samples_of([64, 8, 8]), COST, ROOMY))
    assert found == [8, 9, 11, 13, 16, 19, 22, 26, 32, 38, 45, 53, 64, 76, 90, 107, 128]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([64, 8, 8], [8, 9, 11, 13, 16, 19, 22, 26, 32, 38, 45, 53, 64]),
        ([16] * 6, [2, 3, 4, 5, 6, 8, 9, 11, 13, 16, 19, 22, 26, 32, 38, 45, 48]),
        ([1, 1], [1]),
    ],
)
def test_packed_budgets_reach_the_tokens_of_a_replica(
    lengths: list[int], expected: list[int]
) -> None:
    assert list(packed_budgets(samples_of(lengths), COST, ROOMY)) == expected


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
    cluster = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=10**9)
    best = planned_by(NEXT_FIT, linear_cost(), cluster).choose(THREE).best
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
