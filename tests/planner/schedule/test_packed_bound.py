"""Bounds of all plans of padded and packed micro-batches."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.examples.measured_layers import SHAPE, linear_table, with_packed
from tests.oracles.every_plan import every_partition
from tests.oracles.every_schedule import least_makespan_ms

from dynapipe_hpc.data.microbatch import Branch, MicroBatch, PackedRow, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.schedule.packed_bound import packed_bound_ms, packed_trip_ms
from dynapipe_hpc.planner.schedule.row_cells import RowCells

LINEAR = LinearCost((1.0, 2.0), (0.25, 0.25), token_bytes=2.0, recomputes=True)


def in_every_way(samples: Sequence[Sample], cost: CostModel) -> Iterator[MicroBatch]:
    """In both layouts and all modes; preference pairs only packed."""
    ids = tuple(sample.sample_id for sample in samples)
    lengths = [sample.tokens for sample in samples]
    offsets = tuple(map(int, np.cumsum([0, *lengths])))
    for mode in cost.recompute_modes:
        branches = tuple(
            Branch(begin + sample.input_tokens + sample.target_tokens, sample.input_tokens)
            for sample, begin in zip(samples, offsets, strict=False)
            if sample.is_pair
        )
        if not branches:
            yield PaddedRows(tuple(i for i in ids), -(-max(lengths) // 8) * 8, mode)
        row_tokens = -(-sum(lengths) // 8) * 8
        yield PackedRow(ids, row_tokens, offsets=offsets, recompute=mode, branches=branches)


def every_plan(
    samples: Sequence[Sample], cost: CostModel, n_replicas: int
) -> Iterator[list[list[MicroBatch]]]:
    """All partitions in all ways over all replicas; the order of entry is left to schedules."""
    for groups in every_partition(samples):
        for ways in product(*(in_every_way(group, cost) for group in groups)):
            for owners in product(range(n_replicas), repeat=len(ways)):
                replicas = [
                    [m for m, owner in zip(ways, owners, strict=True) if owner == replica]
                    for replica in range(n_replicas)
                ]
                if all(replicas):
                    yield replicas


def least_of_all_plans_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, split: bool
) -> float:
    room_bytes = activation_room_bytes(cost, cluster)
    known: dict[frozenset[MicroBatch], float] = {}

    def replica_ms(microbatches: list[MicroBatch]) -> float:
        key = frozenset(microbatches)
        if key not in known:
            costs = microbatch_costs(microbatches, cost)
            known[key] = (
                least_makespan_ms(
                    costs,
                    cluster.link,
                    split=split,
                    limit_bytes=room_bytes,
                    reduce_ms=cost.reduce_ms - cost.reduce_ms.min(),
                )
                if fits(costs, room_bytes).all()
                else np.inf
            )
        return known[key]

    plans = every_plan(samples, cost, cluster.n_replicas)
    return min(max(map(replica_ms, plan)) for plan in plans)


@pytest.mark.parametrize(("split", "n_samples"), [(False, 3), (True, 2)])
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    launch_ms=st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 2),
    token_ms=st.tuples(*[st.sampled_from([0.02, 0.1, 0.3])] * 2),
    link=st.builds(Link, latency_ms=st.sampled_from([0.0, 2.0])),
    n_replicas=st.integers(1, 2),
    room_tokens=st.sampled_from([64, 100, 150, 10_000]),
    weights_ms=st.sampled_from([(), (6.0, 1.0), (0.0, 9.0)]),
)
@settings(max_examples=20, deadline=None)
def test_no_plan_in_any_schedule_within_memory_is_shorter(
    split: bool,
    n_samples: int,
    lengths: list[int],
    launch_ms: tuple[float, float],
    token_ms: tuple[float, float],
    link: Link,
    n_replicas: int,
    room_tokens: int,
    weights_ms: tuple[float, ...],
) -> None:
    samples = samples_of(lengths[:n_samples])
    assume(n_replicas <= len(samples))
    cost = LinearCost(launch_ms, token_ms, token_bytes=2.0, weights_ms=weights_ms)
    cluster = Cluster(
        n_replicas=n_replicas, n_stages=2, device_memory_bytes=3 * room_tokens, link=link
    )
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=split)
    assert packed_bound_ms(samples, cost, cluster, may_split=split) <= best_ms * (1 + 1e-12)


class PairCost(LinearCost):
    """Pairs of tokens take time, too."""

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        costs = super().stage_costs(shapes, recompute, out)
        pairs = shapes.n_rows * np.asarray(shapes.row_tokens, np.float64) ** 2
        costs.of_kinds[..., [Cost.FORWARD_MS, Cost.BACKWARD_MS]] += 1e-3 * pairs[:, None, None]
        return costs


@given(
    sides=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 30)),
        min_size=1,
        max_size=3,
    ),
    room_tokens=st.sampled_from([100, 10_000]),
)
@settings(max_examples=30, deadline=None)
def test_no_plan_of_preference_pairs_is_shorter(
    sides: list[tuple[int, int, int]], room_tokens: int
) -> None:
    samples = [Sample(i, p, c, rejected_tokens=r) for i, (p, c, r) in enumerate(sides)]
    cost = PairCost((1.0, 0.0), (0.02, 0.3), token_bytes=2.0)
    cluster = cluster_of(3 * room_tokens)
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=False)
    bound_ms = packed_bound_ms(samples, cost, cluster, may_split=False)
    assert 0 < bound_ms <= best_ms * (1 + 1e-12)
    trip_ms = packed_trip_ms(samples, cost, cluster, may_split=False)
    assert trip_ms <= best_ms * (1 + 1e-12)


def cluster_of(memory_bytes: int, n_replicas: int = 1) -> Cluster:
    return Cluster(
        n_replicas=n_replicas,
        n_stages=2,
        device_memory_bytes=memory_bytes,
        link=Link(latency_ms=0, bytes_per_ms=np.inf),
    )


def test_samples_that_memory_holds_one_by_one_wait_for_each_other() -> None:
    cost = LinearCost((1.0, 1.0), (0.25, 0.25), token_bytes=2.0)
    samples, cluster = samples_of([40] * 3), cluster_of(120)
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=False)
    assert best_ms == pytest.approx(3 * 22)
    # 80 of 120 bytes are kept for 22 ms, and there are up to 40 more for half of it.
    area_ms = (80 * 22 + 20 * 5.5 + 40 * 5.5) / 120
    bound_ms = packed_bound_ms(samples, cost, cluster, may_split=False)
    assert 0.95 * 3 * area_ms < bound_ms < best_ms
    assert bound_ms > 1.1 * (11 + 3 * 11)  # head and tail, and the work of a stage


def test_memory_is_kept_until_deferred_weight_gradients_are_there() -> None:
    # F takes 1 ms, B and W half of that each; W is the last to need what is kept.
    cost = LinearCost((0.0,), (0.05,), token_bytes=2.0)
    cluster = Cluster(n_stages=1, device_memory_bytes=121)
    cells = RowCells.from_samples(samples_of([40]), cost, cluster, may_split=True)
    work_ms, area_ms = 2.0, 80 * 2.0 + 20 * 1.0 + 40 * (0.5 + 0.5)
    alone = np.flatnonzero((cells.n_rows == 1) & (cells.costs.work_ms[:, 0] >= 0.999 * work_ms))
    assert cells.area_ms[alone[0]] == pytest.approx(area_ms / 121, rel=2e-3)


def test_every_replica_has_a_first_and_a_last_micro_batch_of_its_own() -> None:
    # One short sample for two replicas: the other one begins and ends with a long one.
    cost = LinearCost((1.0, 1.0), (0.25, 0.25))
    samples, cluster = samples_of([8, 80, 80, 80]), cluster_of(10**6, n_replicas=2)
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=False)
    # All in one micro-batch, but for the ends.
    with_shortest_ends_ms = (1 + 2 + (1 + 60)) / 2 + (1 + 2)
    bound_ms = packed_bound_ms(samples, cost, cluster, may_split=False)
    assert with_shortest_ends_ms < bound_ms < best_ms


def works_ms(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[FloatArray]:
    """Of all partitions, each group in its fastest way, all work on every stage."""
    for groups in every_partition(samples):
        formed = [list(in_every_way(group, cost)) for group in groups]
        costs = [microbatch_costs(group, cost) for group in formed]
        room_bytes = activation_room_bytes(cost, cluster)
        least = [
            np.where(fits(each, room_bytes)[:, None], each.work_ms, np.inf).min(axis=0)
            for each in costs
        ]
        yield np.sum(least, axis=0)


ONE_STAGE = Cluster(n_stages=1, device_memory_bytes=10**9)
MODELS: dict[str, CostModel] = {
    "linear": LinearCost((3.0,), (0.1,)),
    "analytic": AnalyticCost(
        SHAPE,
        equal_shares(SHAPE, ONE_STAGE),
        ONE_STAGE,
        AnalyticConfig(recompute=("none", "full"), launch_ms=0.5, flops_per_ms=1e5),
    ),
    "profiled": ProfiledCost(
        linear_table(),
        SHAPE,
        equal_shares(SHAPE, ONE_STAGE),
        ONE_STAGE,
        config=ProfiledConfig(path=Path("costs.h5")),
    ).monotone,
    "profiled, packed": ProfiledCost(
        with_packed(linear_table(), 0.75),
        SHAPE,
        equal_shares(SHAPE, ONE_STAGE),
        ONE_STAGE,
        config=ProfiledConfig(path=Path("costs.h5")),
    ).monotone,
}


@pytest.mark.parametrize("name", MODELS)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5))
@settings(max_examples=12, deadline=None)
def test_no_partition_in_any_layouts_has_less_work(name: str, lengths: list[int]) -> None:
    cost, samples = MODELS[name], samples_of(lengths)
    bound_ms = packed_bound_ms(samples, cost, ONE_STAGE, may_split=True)
    least_ms = min(float(work[0]) for work in works_ms(samples, cost, ONE_STAGE))
    assert bound_ms <= least_ms * (1 + 1e-12)


@pytest.mark.parametrize("n_samples", [5, 9, 13, 19, 27, 31])
def test_where_any_number_of_rows_takes_as_long_all_may_be_in_one_micro_batch(
    n_samples: int,
) -> None:
    cost = LinearCost((1.0,), (1e-9,), longest_row=16)  # else it would be one long row
    bound_ms = packed_bound_ms(samples_of([16] * n_samples), cost, ONE_STAGE, may_split=False)
    assert 0.8 < bound_ms <= 1 + 1e-6


def test_many_samples_of_any_lengths_are_bounded_by_their_tokens_and_squares() -> None:
    cost = LinearCost((0.0,), (0.1,))
    samples = samples_of(range(10, 400, 3))
    bound_ms = packed_bound_ms(samples, cost, ONE_STAGE, may_split=False)
    work_ms = 0.1 * sum(sample.tokens for sample in samples)
    assert 0.995 * work_ms <= bound_ms <= work_ms
