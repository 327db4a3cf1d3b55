"""Planners that a [planner] table stands for, and the candidates that they try."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.examples.baselines import EveryChooser, budget, dense, naive
from tests.examples.equal_shares import rows_only
from tests.examples.linear_cost import linear_cost, samples_of

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, PaddedRows
from dynapipe_hpc.experiment.show_plan import explain_choice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import GROUPINGS, Baseline
from dynapipe_hpc.planner.baselines.config import DensePackingConfig, TokenBudgetConfig
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Chooser, Infeasible
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.rules import RULES
from dynapipe_hpc.planner.schedule.simulate import iteration_ms

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


def planner_of(memory_bytes: int) -> Planner:
    """Tries three ways, all scheduled by 1F1B."""
    cost, cluster = linear_cost(), Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    ways = [
        Baseline(config, [RULES["1f1b"]], cost, cluster)
        for config in (naive(1), dense(96, 1), budget(104))
    ]
    return Planner(EveryChooser(ways), cost, cluster, 8, rows_only(cluster))


def test_a_search_counts_what_stages_reduce_behind_their_last_pass() -> None:
    # The last stage reduces for long: its last micro-batches should be small.
    cost = linear_cost((1.0,) * 4, (0.02,) * 4, weights_ms=(0.0, 0.0, 0.0, 30.0))
    cluster = Cluster(n_stages=4, device_memory_bytes=10_000)
    samples = samples_of(np.random.default_rng(1).integers(1, 300, 40).tolist())
    search = BestOfSearch([RULES["adaptive"]], SearchConfig(effort=50_000), cost, cluster)
    without = BestOfSearch(
        [RULES["adaptive"]],
        SearchConfig(effort=50_000),
        replace(cost, reduce_ms=np.zeros(4), step_ms=0.0),
        cluster,
    )
    counted = search.choose(samples).best
    blind = without.choose(samples).best
    blind_ms = iteration_ms([p.timeline for p in blind.pipelines], cost)
    assert counted.iteration_ms < 0.985 * blind_ms
    tuned = Baseline(TokenBudgetConfig(rule="token_budget"), list(RULES.values()), cost, cluster)
    choice = tuned.choose(samples)
    assert choice.best.iteration_ms == min(each.iteration_ms for each in choice.candidates)


def test_what_cannot_run_was_tried_and_has_a_reason() -> None:
    # 1F1B keeps two micro-batches on the first stage, of at most 192 bytes each and 96 on top.
    choice = planner_of(400).choose(samples_of([96, 8, 8, 8, 8]))
    refused = [each for each in choice.tried if isinstance(each, Infeasible)]
    assert all(each.reason.startswith("1f1b needs") for each in refused)
    assert len(choice.candidates) == len(choice.tried) - len(refused) > 0
    assert choice.best in choice.candidates
    header, *lines = explain_choice(choice)
    assert header.startswith("candidates: ")
    assert re.match(
        r"  naive padding, 1 rows, recompute none +\| infeasible: 1f1b needs 480 bytes", lines[0]
    )
    assert sum(line.startswith("*") for line in lines) == 1


def test_the_best_plan_is_the_one_whose_weights_are_updated_first() -> None:
    # The last stage reduces its gradients for 20 ms, while the first one computes for as long as
    # the last micro-batch takes: a long one is better last.
    ends_first, updates_first = (
        candidate_of(lengths) for lengths in ([400, 10, 10], [10, 10, 410])
    )
    assert ends_first.makespan_ms < updates_first.makespan_ms
    assert updates_first.iteration_ms < ends_first.iteration_ms
    assert Choice((ends_first, updates_first)).best is updates_first


def candidate_of(lengths: list[int]) -> Candidate:
    """One micro-batch per sample, by 1F1B."""
    cost = linear_cost((2.0, 1.0), weights_ms=(0.0, 20.0))
    cluster = Cluster(n_stages=2, device_memory_bytes=10_000)
    microbatches = [PaddedRows((i,), tokens) for i, tokens in enumerate(lengths)]
    return Candidate("", [schedule_pipeline(microbatches, cost, cluster, [one_f_one_b])], cost)
