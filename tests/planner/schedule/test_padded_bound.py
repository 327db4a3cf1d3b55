"""Bounds of all plans of padded micro-batches, which know what fits into memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.oracles.every_plan import every_padded_plan
from tests.oracles.every_schedule import least_makespan_ms

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.split import padded_microbatch
from dynapipe_hpc.planner.schedule.padded_bound import padded_bound_ms

ROUNDING = 1 + 1e-12

RECOMPUTING = LinearCost((1.0, 2.0), (0.25, 0.25), token_bytes=2.0, recomputes=True)


def plans_of_modes(
    samples: Sequence[Sample], cost: LinearCost, n_replicas: int
) -> Iterator[list[list[MicroBatch]]]:
    """All partitions over all replicas in all modes; the order of entry is left to schedules."""
    seen = set()
    for plan in every_padded_plan(samples, n_replicas, cost.is_encoder_decoder):
        for modes in product(cost.recompute_modes, repeat=sum(map(len, plan))):
            left = iter(modes)
            replicas = [[replace(m, recompute=next(left)) for m in replica] for replica in plan]
            key = frozenset(frozenset((m.rows, m.recompute) for m in r) for r in replicas)
            if key not in seen:
                seen.add(key)
                yield replicas


def least_of_all_plans_ms(
    samples: Sequence[Sample], cost: LinearCost, cluster: Cluster, *, split: bool
) -> float:
    """Of every plan and every schedule that keeps within memory."""
    room_bytes = cluster.device_memory_bytes - cost.static_bytes
    known: dict[frozenset[MicroBatch], float] = {}

    def replica_ms(microbatches: list[MicroBatch]) -> float:
        key = frozenset(microbatches)
        if key not in known:
            costs = microbatch_costs(microbatches, cost)
            known[key] = least_makespan_ms(
                costs,
                cluster.link,
                split=split,
                limit_bytes=room_bytes,
                reduce_ms=cost.reduce_ms - cost.reduce_ms.min(),
            )
        return known[key]

    plans = plans_of_modes(samples, cost, cluster.n_replicas)
    return min(max(map(replica_ms, plan)) for plan in plans)


def least_room_bytes(samples: Sequence[Sample], cost: LinearCost) -> float:
    """In which every sample fits alone, in some mode."""
    alone = [
        [padded_microbatch([s], mode, cost.is_encoder_decoder) for s in samples]
        for mode in cost.recompute_modes
    ]
    needed = [activation_bytes(microbatch_costs(of_mode, cost)).max(axis=1) for of_mode in alone]
    return float(np.min(needed, axis=0).max())


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=3)
LINKS = st.builds(Link, latency_ms=st.sampled_from([0.0, 2.0]), full_duplex=st.booleans())
COSTS = st.builds(
    LinearCost,
    launch_ms=st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 2),
    token_ms=st.tuples(*[st.sampled_from([0.02, 0.1, 0.3])] * 2),
    recomputes=st.booleans(),
    has_targets=st.booleans(),
    weights_ms=st.sampled_from([(), (6.0, 1.0), (0.0, 9.0)]),
)


@pytest.mark.parametrize(("split", "n_samples"), [(False, 3), (True, 2)])
@given(
    lengths=LENGTHS,
    cost=COSTS,
    link=LINKS,
    n_replicas=st.integers(1, 2),
    room_share=st.sampled_from([1.0, 1.2, 1.5, 2.0, 3.0, 100.0]),
)
@settings(max_examples=50, deadline=None)
def test_no_plan_in_any_schedule_within_memory_is_shorter(
    split: bool,
    n_samples: int,
    lengths: list[tuple[int, int]],
    cost: LinearCost,
    link: Link,
    n_replicas: int,
    room_share: float,
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(lengths[:n_samples])]
    assume(n_replicas <= len(samples))
    cluster = Cluster(
        n_replicas=n_replicas,
        n_stages=2,
        device_memory_bytes=int(room_share * least_room_bytes(samples, cost)),
        link=link,
    )
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=split)
    assert padded_bound_ms(samples, cost, cluster, may_split=split) <= best_ms * ROUNDING


def cluster_of(memory_bytes: int, n_replicas: int = 1) -> Cluster:
    return Cluster(
        n_replicas=n_replicas,
        n_stages=2,
        device_memory_bytes=memory_bytes,
        link=Link(latency_ms=0, bytes_per_ms=np.inf),
    )


def test_modes_that_do_not_fit_are_not_counted() -> None:
    # 40 tokens keep 80 bytes and 40 on top; recomputed, 20 and 60.
    ample, tight = (
        padded_bound_ms(samples_of([40]), RECOMPUTING, cluster_of(n), may_split=False)
        for n in (120, 119)
    )
    assert ample == pytest.approx(11 + 12)
    assert tight == pytest.approx(1.5 * (11 + 12))


def test_samples_that_memory_holds_one_by_one_wait_for_each_other() -> None:
    cost = LinearCost((1.0, 1.0), (0.25, 0.25), token_bytes=2.0)
    samples, cluster = samples_of([40] * 3), cluster_of(120)
    best_ms = least_of_all_plans_ms(samples, cost, cluster, split=False)
    assert best_ms == pytest.approx(3 * 22)
    # 80 of 120 bytes are kept for 22 ms, and there are up to 40 more for half of it.
    area_ms = (80 * 22 + 20 * 5.5 + 40 * 5.5) / 120
    bound_ms = padded_bound_ms(samples, cost, cluster, may_split=False)
    assert bound_ms == pytest.approx(3 * area_ms, rel=2e-3)
    assert bound_ms > 1.1 * (11 + 3 * 11)  # head and tail, and the work of a stage


def test_every_replica_has_a_first_and_a_last_micro_batch_of_its_own() -> None:
    # One short sample for two replicas: the other one begins and ends with a long one.
    cost = LinearCost((0.0, 0.0), (0.25, 0.25))
    samples, cluster = samples_of([8, 80, 80, 80]), cluster_of(10**6, n_replicas=2)
    work_ms = (2 + 3 * 20) / 2
    bound_ms = padded_bound_ms(samples, cost, cluster, may_split=False)
    assert bound_ms == pytest.approx(work_ms + (2 + 20) / 2, rel=2e-3)
