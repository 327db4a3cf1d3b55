"""Which plans of a search are refined, and which of their replicas."""

from dataclasses import replace

import numpy as np
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate
from dynapipe_hpc.planner.choose.found_ends import REFINABLE, BestMakespans
from dynapipe_hpc.planner.choose.refine_slowest import refine_slowest
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.pipeline import refine_pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.update import reduced_ms

COST = LinearCost((1.0, 2.0, 1.0), (0.03, 0.02, 0.01), weights_ms=(1.0, 2.0, 40.0))
CLUSTER = Cluster(n_stages=3, n_replicas=3, device_memory_bytes=1_000_000)
N_PASSES = 3 * 60_000
EFFORT = 7_000


def candidate(seed: int) -> Candidate:
    """Three replicas of uneven micro-batches."""
    tokens = np.random.default_rng(seed).integers(1, 40, (3, 5)) * 8
    replicas = [[PaddedRows((i,), int(n)) for i, n in enumerate(row)] for row in tokens]
    pipelines = [schedule_pipeline(each, COST, CLUSTER, [adaptive]) for each in replicas]
    return Candidate("drawn", pipelines, COST)


def test_the_iteration_ends_as_if_all_replicas_were_refined_but_few_are() -> None:
    n_refined = 0
    for seed in range(40):
        before = candidate(seed)
        refined = refine_slowest(before, CLUSTER, N_PASSES, seed=0)
        every_one = [
            refine_pipeline(p, COST, CLUSTER, n_passes=N_PASSES // 3, seed=0)
            for p in before.pipelines
        ]
        assert refined.iteration_ms == replace(before, pipelines=every_one).iteration_ms
        assert refined.iteration_ms <= before.iteration_ms
        n_refined += sum(
            a.schedule != b.schedule
            for a, b in zip(before.pipelines, refined.pipelines, strict=True)
        )
        waited_for = max(reduced_ms(p.timeline, COST) for p in refined.pipelines)
        for old, new in zip(before.pipelines, refined.pipelines, strict=True):
            assert new is old or reduced_ms(old.timeline, COST) >= waited_for
    assert 0 < n_refined < 3 * 40


def test_without_passes_replicas_stay_as_they_are() -> None:
    before = candidate(0)
    assert list(refine_slowest(before, CLUSTER, 0, seed=0).pipelines) == list(before.pipelines)


def test_what_ends_much_later_than_the_shortest_iteration_is_not_refined() -> None:
    ends = BestMakespans()
    assert ends.is_refinable(0, 1e9)
    ends.add(EFFORT, 100.0)
    ends.add(EFFORT, 200.0)
    assert ends.is_refinable(EFFORT, 100.0 * REFINABLE - 0.01)
    assert not ends.is_refinable(EFFORT, 100.0 * REFINABLE + 0.01)
    assert ends.least_ms == 100.0


def test_what_more_effort_found_does_not_count() -> None:
    ends = BestMakespans()
    ends.add(2 * EFFORT, 100.0)
    assert ends.is_refinable(EFFORT, 150.0)
    assert not ends.is_refinable(2 * EFFORT, 150.0)
    assert not ends.is_refinable(3 * EFFORT, 150.0)
