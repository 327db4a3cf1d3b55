"""Candidates from which a plan was chosen."""

import re
from dataclasses import replace

import numpy as np
from tests.examples.baselines import EveryChooser, budget, dense, naive
from tests.examples.equal_shares import rows_only
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.experiment.show_plan import explain_choice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.update import iteration_ms
from dynapipe_hpc.planner.search.config import SearchConfig


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


def test_what_cannot_run_was_tried_and_has_a_reason() -> None:
    # 1F1B keeps two micro-batches on the first stage, of at most 192 bytes each and 96 on top.
    choice = planner_of(400).choose(samples_of([96, 8, 8, 8, 8]))
    refused = [each for each in choice.tried if isinstance(each, Infeasible)]
    assert all(each.reason.startswith("1F1B needs") for each in refused)
    assert len(choice.candidates) == len(choice.tried) - len(refused) > 0
    assert choice.best in choice.candidates
    header, *lines = explain_choice(choice)
    assert header.startswith("candidates: ")
    assert re.match(
        r"  naive padding, 1 rows, recompute none +\| infeasible: 1F1B needs 480 bytes", lines[0]
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
