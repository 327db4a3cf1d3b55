from collections.abc import Callable, Sequence

import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.fixed_rows import NaivePadding
from dynapipe_hpc.planner.baselines.token_budget import TokenBudget
from dynapipe_hpc.planner.baselines.tuned import (
    Settings,
    Tuned,
    budgets,
    packed_budgets,
    row_counts,
)
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.choose.best_of_rules import BestOfRules
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b

COST = LinearCost(launch_ms=(3.0, 2.0), token_ms=(0.05, 0.04))
ROOMY = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=10**9)
SAMPLES = samples_of([200, 10, 64, 33, 8, 120, 9, 40, 64, 16, 12])


def tuned(
    rule_with: Callable[[int], BatchRule],
    settings: Settings,
    cost: LinearCost = COST,
    cluster: Cluster = ROOMY,
) -> Tuned:
    def chooser_with(setting: int) -> BestOfRules:
        return BestOfRules([rule_with(setting)], [one_f_one_b], cost, cluster)

    return Tuned(chooser_with, settings, cost, cluster)


def ms_with(rule: NaivePadding | TokenBudget, samples: Sequence[Sample] = SAMPLES) -> float:
    return BestOfRules([rule], [one_f_one_b], COST, ROOMY).choose(samples).best.iteration_ms


def test_the_best_of_every_number_of_rows_is_found() -> None:
    # Row counts of 1, 2, 3, 4 and 6 are all there are that differ for 11 samples on 2 replicas.
    found = tuned(NaivePadding, row_counts).choose(SAMPLES)
    assert found.best.iteration_ms == min(ms_with(NaivePadding(n)) for n in (1, 2, 3, 4, 6))


def test_no_power_of_two_is_a_better_budget() -> None:
    found = tuned(TokenBudget, budgets).choose(SAMPLES)
    assert found.best.iteration_ms <= min(ms_with(TokenBudget(25 * 2**k)) for k in range(8))


def test_every_batch_has_its_own_best_setting() -> None:
    found = tuned(TokenBudget, budgets)
    short, long = (found.choose(samples_of([n] * 16)).best.way for n in (8, 800))
    assert short != long


@pytest.mark.parametrize(
    ("n_samples", "n_replicas", "expected"),
    [
        (1, 1, [1]),
        (3, 1, [1, 2, 3]),
        (11, 2, [1, 2, 3, 4, 6]),
        (9, 1, [1, 2, 3, 4, 6, 8, 9]),
    ],
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
    found = tuned(NaivePadding, row_counts, LinearCost(), small)
    tried = [each.way for each in found.choose(samples_of([32] * 4)).tried]
    assert tried == ["naive padding, 1 rows", "naive padding, 2 rows"]


def test_if_none_fits_the_smallest_is_named() -> None:
    small = Cluster(n_stages=2, device_memory_bytes=100)
    found = tuned(NaivePadding, row_counts, LinearCost(), small)
    with pytest.raises(DoesNotFitError, match="a micro-batch of 1 x 64 tokens"):
        found.choose(samples_of([64] * 4))
