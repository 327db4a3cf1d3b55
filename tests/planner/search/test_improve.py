"""The local search on plans: it keeps what must hold and finds what is best where we can tell."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.length_samples import samples_of
from tests.oracles.linear_cost import LinearCost

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.batch.split import padded_microbatch, split_samples
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.improve import improve

COST = LinearCost((1.0, 2.0), (0.02, 0.03))
Replicas = Sequence[Sequence[MicroBatch]]


def cluster_of(n_replicas: int, memory_bytes: int = 1_000_000) -> Cluster:
    return Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)


def first_plan(samples: Sequence[Sample], cluster: Cluster) -> Replicas:
    microbatches = split_samples(order_samples(samples), COST, cluster)
    replicas = balance_replicas(microbatches, COST, cluster.n_replicas)
    return [[microbatches[i] for i in replica] for replica in replicas]


def makespan_ms(replicas: Replicas, cluster: Cluster) -> float:
    pipelines = [schedule_pipeline(m, COST, cluster, [adaptive]) for m in replicas]
    return max(pipeline.timeline.makespan_ms for pipeline in pipelines)


def every_plan(samples: Sequence[Sample], n_replicas: int) -> Iterator[Replicas]:
    """All cuts of the ordered samples, over all replicas, in all orders."""
    ordered = order_samples(samples)
    for cuts in product((False, True), repeat=len(samples) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(samples)]
        windows = [ordered[a:b] for a, b in pairwise(bounds)]
        for order in permutations(padded_microbatch(window, Recompute.NONE) for window in windows):
            for owners in product(range(n_replicas), repeat=len(order)):
                replicas: list[list[MicroBatch]] = [[] for _ in range(n_replicas)]
                for owner, microbatch in zip(owners, order, strict=True):
                    replicas[owner].append(microbatch)
                if all(replicas):
                    yield replicas


lengths_of_samples = st.lists(st.integers(1, 200), min_size=4, max_size=30)


@given(lengths_of_samples, st.integers(1, 3), st.integers(0, 3))
def test_every_sample_stays_in_the_plan_and_no_replica_is_left_empty(
    lengths: list[int], n_replicas: int, seed: int
) -> None:
    samples, cluster = samples_of(lengths), cluster_of(n_replicas)
    start = first_plan(samples, cluster)
    found = improve(start, samples, COST, cluster, SearchConfig(moves=200, seed=seed))
    kept = sorted(i for replica in found for m in replica for i in m.sample_ids)
    assert kept == list(range(len(lengths)))
    assert all(found)
    assert makespan_ms(found, cluster) <= makespan_ms(start, cluster) + 1e-9


@given(lengths_of_samples)
def test_micro_batches_still_fit_where_memory_is_scarce(lengths: list[int]) -> None:
    samples = samples_of(lengths)
    cluster = cluster_of(1, memory_bytes=3 * 208)  # what one sample of 200 tokens needs
    found = improve(first_plan(samples, cluster), samples, COST, cluster, SearchConfig(moves=300))
    pipeline = schedule_pipeline(found[0], COST, cluster, [adaptive])
    assert pipeline.timeline.peak_bytes.max() <= cluster.device_memory_bytes


@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("draw", range(6))
def test_it_finds_the_best_of_all_plans_of_few_samples(n_replicas: int, draw: int) -> None:
    lengths = np.random.default_rng(draw).integers(1, 300, 5).tolist()
    samples, cluster = samples_of(lengths), cluster_of(n_replicas)
    start = first_plan(samples, cluster)
    found = improve(start, samples, COST, cluster, SearchConfig(moves=5000))
    best_ms = min(makespan_ms(replicas, cluster) for replicas in every_plan(samples, n_replicas))
    assert makespan_ms(found, cluster) == pytest.approx(best_ms, rel=1e-12)


def test_what_a_crowded_pipeline_gains_from_recomputation_is_found() -> None:
    cost = LinearCost((1.0,) * 4, (0.02,) * 4, token_bytes=4.0, recomputes=True)
    samples = samples_of([100] * 8)
    cluster = Cluster(n_stages=4, device_memory_bytes=7 * 104)
    start = [split_samples(order_samples(samples), cost, cluster)]
    found = improve(start, samples, cost, cluster, SearchConfig(moves=2000))
    assert {m.recompute for m in start[0]} == {Recompute.NONE}
    assert Recompute.FULL in {m.recompute for m in found[0]}
    before, after = (
        schedule_pipeline(replicas[0], cost, cluster, [adaptive]) for replicas in (start, found)
    )
    assert after.timeline.makespan_ms < before.timeline.makespan_ms
    assert after.timeline.peak_bytes.max() <= cluster.device_memory_bytes


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    samples, cluster = samples_of(range(10, 300, 7)), cluster_of(2)
    start = first_plan(samples, cluster)
    plans = [
        improve(start, samples, COST, cluster, SearchConfig(moves=500, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]


def test_no_moves_leave_the_plan_as_it_is() -> None:
    samples, cluster = samples_of([9, 8, 7]), cluster_of(1)
    start = first_plan(samples, cluster)
    assert improve(start, samples, COST, cluster, SearchConfig(moves=0)) == [list(start[0])]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([[[0, 1, 0]]], "must hold each of the 2 samples, but holds 1"),
        ([[[0, 2, 0], [1, 1, 0]]], "sample 1 is in two windows"),
        ([[[0, 3, 0]]], "window of 3 samples from 0 in mode 0 lies outside"),
        ([[[0, 2, 1]]], "in mode 1 lies outside"),
        ([[[0, 2, 0]], []], r"each replica of start must have shape \(n >= 1, 3\)"),
    ],
)
def test_a_start_that_is_no_plan_is_refused(start: list[list[list[int]]], message: str) -> None:
    cells = np.zeros((1, 1, 2), np.int32)
    windows = [np.array(replica, np.uint32).reshape(-1, 3) for replica in start]
    lengths = np.zeros(2, np.int32)
    limit = np.full(2, np.inf)
    with pytest.raises(ValueError, match=message):
        _kernels.improve_plan(
            np.ones((1, 2, 7)),
            cells,
            lengths,
            windows,
            limit,
            0.0,
            1.0,
            True,
            10,
            0,
        )
