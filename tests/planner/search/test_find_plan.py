"""The search for plans: it keeps what must hold and finds what is best where we can tell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.batch.split import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.update import reduced_ms
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import Found, find_plan
from dynapipe_hpc.planner.search.spaces import search_spaces

COST = LinearCost((1.0, 2.0), (0.02, 0.03))
Replicas = Sequence[Sequence[MicroBatch]]


def cluster_of(n_replicas: int, memory_bytes: int = 1_000_000) -> Cluster:
    return Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)


def find(
    samples: Sequence[Sample],
    cluster: Cluster,
    effort: int,
    *,
    seed: int = 0,
    cost: LinearCost = COST,
    split_backward: bool = False,
) -> Found:
    config = SearchConfig(effort=effort, seed=seed)
    spaces = next(search_spaces(samples, cost, cluster, split_backward=split_backward))
    return find_plan(spaces, config)


def makespan_ms(
    replicas: Replicas, cluster: Cluster, cost: LinearCost = COST, *, split_backward: bool = False
) -> float:
    rule = adaptive_split if split_backward else adaptive
    pipelines = [schedule_pipeline(m, cost, cluster, [rule]) for m in replicas]
    assert all(
        pipeline.timeline.peak_bytes.max() <= cluster.device_memory_bytes for pipeline in pipelines
    )
    least_ms = float(cost.reduce_ms.min())
    return max(reduced_ms(pipeline.timeline, cost) for pipeline in pipelines) - least_ms


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


@given(
    lengths_of_samples,
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([(), (2.0, 8.0), (8.0, 2.0)]),
)
def test_every_sample_is_in_the_plan_and_no_replica_is_empty(
    lengths: list[int],
    n_replicas: int,
    seed: int,
    split_backward: bool,
    weights_ms: tuple[float, ...],
) -> None:
    samples, cluster = samples_of(lengths), cluster_of(n_replicas)
    cost = replace(COST, weights_ms=weights_ms)
    found = find(samples, cluster, 6_250, seed=seed, cost=cost, split_backward=split_backward)
    best = found.searched[0]
    kept = sorted(i for replica in best.microbatches for m in replica for i in m.sample_ids)
    assert kept == list(range(len(lengths)))
    assert all(best.microbatches)
    (constructed,) = found.constructed.values()
    made_ms = [plan.makespan_ms for plan in constructed]
    assert made_ms == sorted(made_ms)
    assert best.makespan_ms <= made_ms[0]
    simulated_ms = makespan_ms(best.microbatches, cluster, cost, split_backward=split_backward)
    assert simulated_ms == pytest.approx(best.makespan_ms, rel=1e-12)


@given(lengths_of_samples, st.booleans())
def test_whatever_fits_sample_by_sample_has_a_plan_within_memory(
    lengths: list[int], split_backward: bool
) -> None:
    samples = samples_of(lengths)
    cluster = cluster_of(1, memory_bytes=3 * 208)  # what one sample of 200 tokens needs
    found = find(samples, cluster, 6_250, split_backward=split_backward)
    best = found.searched[0].microbatches
    assert makespan_ms(best, cluster, split_backward=split_backward) < np.inf


@pytest.mark.parametrize(
    ("weights_ms", "split_backward"), [((), False), ((5.0, 9.0), False), ((9.0, 5.0), True)]
)
@pytest.mark.parametrize(("n_replicas", "draw"), [(1, 0), (1, 1), (1, 2), (2, 0)])
def test_it_finds_the_best_of_all_plans_of_few_samples(
    n_replicas: int, draw: int, weights_ms: tuple[float, ...], split_backward: bool
) -> None:
    lengths = np.random.default_rng(draw).integers(1, 300, 5).tolist()
    samples, cluster = samples_of(lengths), cluster_of(n_replicas)
    cost = replace(COST, weights_ms=weights_ms)
    found = find(samples, cluster, 200_000, cost=cost, split_backward=split_backward)
    best_ms = min(
        makespan_ms(replicas, cluster, cost, split_backward=split_backward)
        for replicas in every_plan(samples, n_replicas)
    )
    assert found.searched[0].makespan_ms == pytest.approx(best_ms, rel=1e-12)


def test_what_a_crowded_pipeline_gains_from_recomputation_is_found() -> None:
    cost = LinearCost((1.0,) * 4, (0.02,) * 4, token_bytes=4.0, recomputes=True)
    samples = samples_of([100] * 8)
    cluster = Cluster(n_stages=4, device_memory_bytes=7 * 104)
    found = find(samples, cluster, 100_000, cost=cost)
    replicas = found.searched[0].microbatches
    assert Recompute.FULL in {m.recompute for m in replicas[0]}
    plain = [padded_microbatch([sample], Recompute.NONE) for sample in samples]
    assert makespan_ms(replicas, cluster, cost) < makespan_ms([plain], cluster, cost)


def test_splitting_backward_passes_never_takes_longer_where_memory_is_ample() -> None:
    samples, cluster = samples_of(range(10, 300, 7)), cluster_of(2)
    whole, split = (
        find(samples, cluster, 25_000, split_backward=splits).searched[0].makespan_ms
        for splits in (False, True)
    )
    assert split < whole


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    samples, cluster = samples_of(range(10, 300, 7)), cluster_of(2)
    found = [find(samples, cluster, 25_000, seed=seed).searched[0] for seed in (1, 1, 2)]
    plans = [plan.microbatches for plan in found]
    assert plans[0] == plans[1] != plans[2]


@given(lengths_of_samples, st.integers(1, 3), st.sampled_from([700, 1_000_000]))
def test_what_less_effort_finds_more_finds_too(
    lengths: list[int], n_replicas: int, memory_bytes: int
) -> None:
    samples, cluster = samples_of(lengths), cluster_of(n_replicas, memory_bytes)
    efforts = (0, 6_250, 12_500, 20_000, 50_000)
    found = [find(samples, cluster, effort).searched for effort in efforts]
    for less, more in pairwise(found):
        assert {plan.makespan_ms for plan in less} <= {plan.makespan_ms for plan in more}


def test_all_orders_of_pairs_are_searched_that_are_not_soon_far_behind() -> None:
    random = np.random.default_rng(0)
    pairs = [Sample(i, *random.integers(1, 300, 2).tolist()) for i in range(40)]
    cost = LinearCost((1.0, 2.0), (0.02, 0.03), has_targets=True)
    found = find(pairs, cluster_of(1), 100_000, cost=cost)
    best_of_all_ms = found.searched[0].makespan_ms
    assert len(found.constructed) == 4
    assert len({id(plan.space) for plan in found.searched}) > 1
    assert best_of_all_ms <= min(plans[0].makespan_ms for plans in found.constructed.values())


def test_a_batch_rule_that_begins_best_is_a_start() -> None:
    samples, cluster = samples_of([64] * 48), Cluster(n_stages=16, device_memory_bytes=10**7)
    cost = LinearCost((1.0,) * 16, (0.02,) * 16)
    config = SearchConfig(effort=0)
    rules = [DynamicBatches(share) for share in (1 / 16, 0.25, 1.0)]
    spaces = next(search_spaces(samples, cost, cluster, split_backward=False))
    found = find_plan(spaces, config, rules)
    assert found.by_rules
    best_rule_ms = min(plan.makespan_ms for plan in found.by_rules)
    assert found.searched[0].makespan_ms <= best_rule_ms


def test_more_replicas_than_samples_are_refused() -> None:
    with pytest.raises(TooFewMicroBatchesError, match="1 micro-batches for 2 replicas"):
        find(samples_of([10]), cluster_of(2), 100)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([[[0, 1, 0]]], "must hold each of the 2 samples, but holds 1"),
        ([[[0, 2, 0], [1, 1, 0]]], "sample 1 is in two windows"),
        ([[[0, 3, 0]]], "window of 3 samples from 0 in mode 0 lies outside"),
        ([[[0, 2, 1]]], "in mode 1 lies outside"),
        ([[[0, 1, 0]], [[1, 1, 0]]], "2 replicas, and slowness 1"),
        ([[[0, 2, 0]], []], r"each replica of start must have shape \(n >= 1, 3\)"),
    ],
)
def test_a_start_that_is_no_plan_is_refused(start: list[list[list[int]]], message: str) -> None:
    windows = [np.array(replica, np.uint32).reshape(-1, 3) for replica in start]
    with pytest.raises(ValueError, match=message):
        _kernels.PlanSearch(*two_samples(), [windows], 0)


def test_too_many_replicas_and_samples_that_do_not_run_are_refused_by_the_kernel() -> None:
    with pytest.raises(ValueError, match="n_replicas 1 to 2, got 4 and 3"):
        _kernels.construct_plans(*two_samples(n_replicas=3), 4)
    with pytest.raises(ValueError, match="sample 0 alone may not be used"):
        _kernels.construct_plans(*two_samples(cell=-1), 4)


def test_reductions_follow_the_passes_of_every_stage_and_slow_replicas_stretch_both() -> None:
    # F and B of 1 ms each and transfers of 1 ms: the last stage ends after 4 ms, the first after 6.
    simulator, _ = two_samples(reduce_ms=(2.0, 5.0))
    together = [[np.array([[0, 2, 0]], np.uint32)]]
    for slowness in (1.0, 1.5):
        found = _kernels.makespans_ms(simulator, np.array([slowness]), together, np.inf)
        assert found == [slowness * 9.0]


def two_samples(
    cell: int = 0, n_replicas: int = 1, reduce_ms: tuple[float, float] = (0.0, 0.0)
) -> tuple[_kernels.ReplicaSimulator, FloatArray]:
    """Simulator and slowness of two samples that may run alone or together, all alike.

    With cell -1 they may not run.
    """
    windows = (np.full(2, cell, np.int32), np.array([[[0, 2]]]), np.zeros(2, np.int32))
    costs = _kernels.WindowCosts(_kernels.CostTable(np.ones((1, 2, len(Cost)))), *windows)
    link = _kernels.Link(0.0, 1.0, True)
    simulator = _kernels.ReplicaSimulator(
        costs, np.full(2, np.inf), link, False, np.array(reduce_ms)
    )
    return simulator, np.ones(n_replicas)
