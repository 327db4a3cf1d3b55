"""A default plan is never worse than one that less would have found."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.baselines import NaivePadding
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.rules import batch_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.search.config import SearchConfig

AMPLE_BYTES = 10**8
UNIFORM = np.random.default_rng(5).integers(1, 512, 24).tolist()
GIANT = [512] + [8] * 150
CASES = {
    "constant, 16 stages": ([64] * 48, 16, 1, AMPLE_BYTES),
    "constant, 16 stages, 2 replicas": ([64] * 48, 16, 2, AMPLE_BYTES),
    "constant, 8 stages, 8 replicas": ([64] * 48, 8, 8, AMPLE_BYTES),
    "one giant, 16 stages, memory for little more": (GIANT, 16, 1, 1129),
    "one giant, 8 stages, memory for little more": (GIANT, 8, 1, 1129),
    "all ones, 8 stages, memory for two": ([1] * 100, 8, 1, 53),
    "all ones, 16 stages, 2 replicas": ([1] * 100, 16, 2, AMPLE_BYTES),
    "uniform, 16 stages, memory for two": (UNIFORM, 16, 1, 3327),
    "uniform, 8 stages, 2 replicas, memory for two": (UNIFORM, 8, 2, 3327),
}


def planner_of(n_stages: int, n_replicas: int, memory_bytes: int) -> Planner:
    """The last stage is the slowest, as the one with the head of a model is."""
    return Planner(
        LinearCost((1.0,) * n_stages, (0.02,) * (n_stages - 1) + (0.025,), recomputes=True),
        Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=memory_bytes),
        8,
        batch_rules(DynamicConfig(), n_stages, 512),
        ScheduleConfig().chosen_rules,
        SearchConfig(),
    )


def makespan_ms(planner: Planner, samples: Sequence[Sample]) -> float:
    """Infinite if there is no plan."""
    try:
        return planner.choose(samples).best.makespan_ms
    except DoesNotFitError:
        return np.inf


@pytest.mark.parametrize("case", CASES)
def test_no_restriction_of_the_default_search_gives_a_better_plan(case: str) -> None:
    lengths, *cluster = CASES[case]
    planner, samples = planner_of(*cluster), samples_of(lengths)
    effort = SearchConfig().effort
    choice = planner.choose(samples)
    found_ms = choice.best.makespan_ms
    restricted = {
        "batch rules": replace(planner, search=SearchConfig(effort=0)),
        "one mode": replace(planner, recompute_choice="per_iteration"),
        "half the effort": replace(planner, search=SearchConfig(effort=effort // 2)),
        "naive padding": replace(planner, search=None, batch_rules=[NaivePadding(1)]),
    }
    others_ms = {name: makespan_ms(other, samples) for name, other in restricted.items()}
    double_ms = makespan_ms(replace(planner, search=SearchConfig(effort=2 * effort)), samples)
    assert [name for name, ms in others_ms.items() if ms < found_ms] == []
    assert double_ms <= found_ms


def test_1f1b_of_the_same_micro_batches_is_no_better() -> None:
    planner, samples = planner_of(8, 1, AMPLE_BYTES), samples_of(UNIFORM)
    best = planner.choose(samples).best
    assert not isinstance(best.pipelines, Exception)
    strict = [
        schedule_pipeline(p.microbatches, planner.cost, planner.cluster, [one_f_one_b])
        for p in best.pipelines
    ]
    assert best.makespan_ms <= max(pipeline.timeline.makespan_ms for pipeline in strict)
