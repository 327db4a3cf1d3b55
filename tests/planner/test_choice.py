"""What a plan was chosen from."""

import re

import numpy as np
import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.experiment.explain.explain_plan import explain_choice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.baselines import DensePacking, NaivePadding
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.choice import Choice
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import RULES
from dynapipe_hpc.planner.schedule.lower_bound import replica_bound_ms
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError
from dynapipe_hpc.planner.search.config import SearchConfig

SAMPLES = samples_of([96, 96, 40, 8, 8, 90, 50])


def planner_of(memory_bytes: int, *, search: SearchConfig | None = None) -> Planner:
    """Tries three ways, all scheduled by 1F1B."""
    return Planner(
        LinearCost(),
        Cluster(n_stages=2, device_memory_bytes=memory_bytes),
        8,
        [NaivePadding(1), DensePacking(96, 1), DynamicBatches(0.5), DynamicBatches(0.500001)],
        [RULES["1f1b"]],
        search,
    )


def test_every_way_is_a_candidate_and_those_that_agree_are_one() -> None:
    choice = planner_of(10_000, search=SearchConfig(effort=500)).choose(SAMPLES)
    assert [candidate.way for candidate in choice.candidates] == [
        "naive padding, 1 rows",
        "dense packing, 1 rows of 96 tokens",
        "dynamic, memory share 0.5 = dynamic, memory share 0.500001",
        choice.candidates[-1].way,
    ]
    assert choice.candidates[-1].way.startswith("local search, ")
    assert choice.constructed["by length"][0].makespan_ms < np.inf
    assert choice.best.makespan_ms == min(c.makespan_ms for c in choice.candidates)


def test_what_cannot_run_is_a_candidate_with_a_reason() -> None:
    # 1F1B keeps two micro-batches on the first stage, of at most 192 bytes each and 96 on top.
    choice = planner_of(400).choose(samples_of([96, 8, 8, 8, 8]))
    refused = [c for c in choice.candidates if isinstance(c.pipelines, InfeasibleScheduleError)]
    assert [candidate.makespan_ms for candidate in refused] == [float("inf")] * len(refused)
    assert choice.best not in refused
    header, *lines = explain_choice(choice)
    assert header.startswith("candidates: ")
    assert re.match(r"  naive padding, 1 rows +\| infeasible: 1F1B needs 480 bytes", lines[0])
    assert sum(line.startswith("*") for line in lines) == 1


def test_if_nothing_can_run_the_reason_is_raised() -> None:
    choice = planner_of(400).choose(samples_of([96] * 4))
    with pytest.raises(InfeasibleScheduleError, match="1F1B needs 480 bytes"):
        _ = choice.pipelines


def test_the_bound_is_over_all_padded_plans_if_the_plan_is_one() -> None:
    planner = planner_of(10_000)
    packed, padded = (
        next(c for c in planner.choose(SAMPLES).candidates if c.way.startswith(way))
        for way in ("dense", "naive")
    )
    of_packed, of_padded = (planner.lower_bound_ms(Choice((c,)), SAMPLES) for c in (packed, padded))
    (pipeline,) = Choice((packed,)).pipelines
    assert of_packed == replica_bound_ms(pipeline.costs, planner.cluster.link, may_split=False)
    best = min(c.makespan_ms for c in planner.choose(SAMPLES).candidates if c is not packed)
    assert of_padded <= best
    assert of_padded < padded.makespan_ms
