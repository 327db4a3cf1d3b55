"""Planners that a [planner] table stands for."""

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.as_assigned import AsAssigned
from dynapipe_hpc.planner.baselines.fixed_rows import DensePacking, NaivePadding
from dynapipe_hpc.planner.baselines.length_grouped import LengthGrouped
from dynapipe_hpc.planner.baselines.one_mode import OneModeForAll
from dynapipe_hpc.planner.baselines.packed.packed_first_fit import PackedFirstFit
from dynapipe_hpc.planner.baselines.packed.packed_next_fit import PackedNextFit
from dynapipe_hpc.planner.baselines.replica_rule import ReplicaRule
from dynapipe_hpc.planner.baselines.token_budget import TokenBudget
from dynapipe_hpc.planner.baselines.tuned import (
    Settings,
    Tuned,
    budgets,
    packed_budgets,
    row_counts,
)
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.packed_balanced import PackedBalanced
from dynapipe_hpc.planner.choose.best_of_rules import BestOfRules
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.config import BatchConfig, PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import chooser

TABLE: TypeAdapter[BatchConfig] = TypeAdapter(BatchConfig)


def chooser_of(table: dict[str, object], cost: CostModel, n_stages: int = 2) -> Chooser:
    config = PlannerConfig.model_validate(
        {"cost": {"kind": "analytic"}, "batch": table, "search": {"effort": 0}}
    )
    cluster = Cluster(n_stages=n_stages, device_memory_bytes=1000)
    return chooser(config, cost, cluster, max_tokens=64)


def rule_of(found: Chooser) -> BatchRule | ReplicaRule:
    """The one rule of a baseline with a setting."""
    if isinstance(found, AsAssigned):
        return found.rule
    assert isinstance(found, BestOfRules)
    (rule,) = found.batch_rules
    return rule


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"rule": "dense_packing", "rows_per_microbatch": 2}, DensePacking(0, 2)),
        (
            {
                "rule": "dense_packing",
                "rows_per_microbatch": 2,
                "row_tokens": 64,
                "target_tokens": 16,
            },
            DensePacking(64, 2, 16),
        ),
        ({"rule": "naive_padding", "rows_per_microbatch": 3}, NaivePadding(3)),
        ({"rule": "length_grouped", "rows_per_microbatch": 3}, LengthGrouped(3)),
        ({"rule": "token_budget", "tokens_per_microbatch": 96}, TokenBudget(96)),
        ({"rule": "packed_next_fit", "tokens_per_microbatch": 96}, PackedNextFit(96)),
        ({"rule": "packed_first_fit", "tokens_per_microbatch": 96}, PackedFirstFit(96)),
        ({"rule": "packed_balanced", "tokens_per_microbatch": 96}, PackedBalanced(96)),
    ],
)
def test_a_baseline_plans_in_every_mode_with_its_setting(
    table: dict[str, object], rule: BatchRule | ReplicaRule
) -> None:
    found = chooser_of(table, LinearCost(recomputes=True))
    assert isinstance(found, OneModeForAll)
    assert not found.only_first
    assert [mode.text for mode in found.of_modes] == ["none", "full"]
    for mode, in_mode in found.of_modes.items():
        assert rule_of(in_mode) == rule
        assert isinstance(in_mode, BestOfRules | AsAssigned)
        assert in_mode.cost.recompute_modes == (mode,)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"rule": "magic"},
            "'dynamic', 'dense_packing', 'naive_padding', 'length_grouped', 'token_budget', "
            "'packed_next_fit', 'packed_first_fit', 'packed_balanced', 'authors'",
        ),
        ({"rule": "naive_padding", "rows_per_microbatch": 0}, "greater than or equal to 1"),
        ({"rule": "dense_packing", "rows_per_microbatch": "best"}, "should be 'tuned'"),
        ({"rule": "dynamic", "recompute_choice": "some"}, "'per_iteration' or 'first_feasible'"),
        ({"rule": "authors", "interval_ms": -1}, "greater than or equal to 0"),
        ({"rule": "dynamic", "memory_shares": [1.0]}, "Extra inputs are not permitted"),
        ({"rule": "dynamic", "layouts": []}, "at least 1 item"),
        ({"rule": "dynamic", "layouts": ["dense"]}, "'padded' or 'packed'"),
        ({"rule": "dynamic", "rows_per_microbatch": 2}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TABLE.validate_python(table)


@pytest.mark.parametrize("name", ["row_tokens", "target_tokens"])
def test_packed_rows_longer_than_any_that_has_a_cost_are_refused(name: str) -> None:
    table = {"rule": "dense_packing", "rows_per_microbatch": 1, name: 65}
    with pytest.raises(InputError, match=rf"planner.batch.{name} \(65\) exceeds data.max_tokens"):
        chooser_of(table, LinearCost(), n_stages=1)


@pytest.mark.parametrize(
    ("table", "rule", "settings"),
    [
        ({"rule": "dense_packing", "row_tokens": 64}, DensePacking(64, 5), row_counts),
        ({"rule": "naive_padding", "rows_per_microbatch": "tuned"}, NaivePadding(5), row_counts),
        ({"rule": "length_grouped"}, LengthGrouped(5), row_counts),
        ({"rule": "token_budget"}, TokenBudget(5), budgets),
        ({"rule": "packed_next_fit"}, PackedNextFit(5), packed_budgets),
        ({"rule": "packed_first_fit"}, PackedFirstFit(5), packed_budgets),
        ({"rule": "packed_balanced"}, PackedBalanced(5), packed_budgets),
    ],
)
def test_a_baseline_is_tuned_unless_a_setting_is_given(
    table: dict[str, object], rule: BatchRule | ReplicaRule, settings: Settings
) -> None:
    found = chooser_of(table, LinearCost(recomputes=True))
    assert isinstance(found, OneModeForAll)
    assert [mode.text for mode in found.of_modes] == ["none", "full"]
    for mode, tuned in found.of_modes.items():
        assert isinstance(tuned, Tuned)
        assert (rule_of(tuned.chooser_with(5)), tuned.settings) == (rule, settings)
        assert tuned.cost.recompute_modes == (mode,)


def test_dynamic_micro_batches_are_searched_for_in_the_layouts_of_the_table() -> None:
    config = PlannerConfig.model_validate(
        {
            "cost": {"kind": "analytic"},
            "batch": {"rule": "dynamic", "layouts": ["packed", "padded"], "token_multiple": 16},
        }
    )
    cluster = Cluster(n_stages=2, device_memory_bytes=1000)
    found = chooser(config, LinearCost(), cluster, max_tokens=64)
    assert isinstance(found, BestOfSearch)
    assert (found.layouts, found.token_multiple) == ((Layout.PADDED, Layout.PACKED), 16)
    assert found.config == config.search
