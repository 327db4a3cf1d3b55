"""Planners that a [planner] table stands for."""

import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import GROUPINGS, Baseline
from dynapipe_hpc.planner.baselines.config import DensePackingConfig
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import chooser

SMALL = Cluster(n_stages=1, device_memory_bytes=1000)


def chooser_of(table: dict[str, object], cost: CostModel, cluster: Cluster) -> Chooser:
    config = PlannerConfig.model_validate(
        {"cost": {"kind": "analytic"}, "batch": table, "search": {"effort": 0}}
    )
    return chooser(config, cost, cluster, max_tokens=64)


ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


@pytest.mark.parametrize(
    ("table", "way"),
    [
        ({"rule": "dense_packing", "rows_per_microbatch": 2}, "dense packing, 2 rows"),
        (
            {
                "rule": "dense_packing",
                "rows_per_microbatch": 2,
                "row_tokens": 64,
                "target_tokens": 16,
            },
            "dense packing, 2 rows of 64 tokens, targets of 16",
        ),
        ({"rule": "naive_padding", "rows_per_microbatch": 3}, "naive padding, 3 rows"),
        ({"rule": "token_budget", "tokens_per_microbatch": 96}, "token budget, 96 tokens"),
        ({"rule": "packed_next_fit", "tokens_per_microbatch": 96}, "packed next fit, 96 tokens"),
        ({"rule": "packed_balanced", "tokens_per_microbatch": 96}, "packed balanced, 96 tokens"),
    ],
)
def test_a_baseline_plans_in_every_mode_with_its_setting(
    table: dict[str, object], way: str
) -> None:
    found = chooser_of(table, linear_cost(recomputes=True), cluster=ROOMY)
    tried = found.choose(samples_of([60, 40, 8])).tried
    assert [each.way for each in tried] == [f"{way}, recompute {mode}" for mode in ("none", "full")]


@pytest.mark.parametrize("name", ["row_tokens", "target_tokens"])
def test_packed_rows_longer_than_any_that_has_a_cost_are_refused(name: str) -> None:
    table = {"rule": "dense_packing", "rows_per_microbatch": 1, name: 65}
    with pytest.raises(InputError, match=rf"planner.batch.{name} \(65\) exceeds data.max_tokens"):
        chooser_of(table, linear_cost(), SMALL)


@pytest.mark.parametrize("rule", GROUPINGS)
def test_a_baseline_is_tuned_unless_a_setting_is_given(rule: str) -> None:
    found = chooser_of({"rule": rule}, linear_cost(recomputes=True), cluster=ROOMY)
    assert isinstance(found, Baseline)
    assert isinstance(found.config, DensePackingConfig) == (rule == "dense_packing")
    samples = samples_of([60, 40, 8])
    settings = list(GROUPINGS[rule][1](samples, linear_cost(), ROOMY))
    tried = [each.way for each in found.choose(samples).tried if "recompute none" in each.way]
    assert len(tried) == len(settings) > 1
    assert all(f", {n} " in way for n, way in zip(settings, tried, strict=True))


def test_dynamic_micro_batches_are_searched_for_in_the_layouts_of_the_table() -> None:
    config = PlannerConfig.model_validate(
        {
            "cost": {"kind": "analytic"},
            "batch": {"rule": "dynamic", "layouts": ["packed", "padded"], "token_multiple": 16},
        }
    )
    cluster = Cluster(n_stages=2, device_memory_bytes=1000)
    found = chooser(config, linear_cost(), cluster, max_tokens=64)
    assert isinstance(found, BestOfSearch)
    assert (found.layouts, found.token_multiple) == ((Layout.PADDED, Layout.PACKED), 16)
    assert found.config == config.search
