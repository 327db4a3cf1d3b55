"""A replica's micro-batches, scheduled and refined."""

import numpy as np
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.pipeline import (
    FEWEST_MOVES,
    Pipeline,
    refine_pipeline,
    schedule_pipeline,
)

COST = LinearCost((1.0, 2.0, 1.0), (0.03, 0.02, 0.01))
CLUSTER = Cluster(n_stages=3, device_memory_bytes=1_000_000)
N_PASSES = 3 * 2 * 5


def uneven_pipeline(seed: int) -> Pipeline:
    tokens = np.random.default_rng(seed).integers(1, 40, 5) * 8
    batches = [PaddedRows((i,), int(n), Recompute.NONE) for i, n in enumerate(tokens)]
    return schedule_pipeline(batches, COST, CLUSTER, [adaptive])


def test_refined_pipelines_are_never_longer_and_often_shorter() -> None:
    pipelines = [uneven_pipeline(seed) for seed in range(10)]
    refined = [refine_pipeline(p, COST, CLUSTER, n_passes=60_000, seed=0) for p in pipelines]
    pairs = list(zip(pipelines, refined, strict=True))
    assert all(b.timeline.makespan_ms <= a.timeline.makespan_ms for a, b in pairs)
    assert any(b.timeline.makespan_ms < a.timeline.makespan_ms for a, b in pairs)


def test_a_schedule_stays_if_there_is_too_little_to_refine_it_with() -> None:
    pipeline = uneven_pipeline(0)
    n_passes = FEWEST_MOVES * N_PASSES - 1
    assert refine_pipeline(pipeline, COST, CLUSTER, n_passes=n_passes, seed=0) is pipeline
