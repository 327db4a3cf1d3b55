from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.exact_split import split_samples
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost
from tests.oracles.every_split import every_cut

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import (
    DoesNotFitError,
    NotMeasuredError,
    activation_room_bytes,
    fits,
)
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms, fill_ms
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def shapes(microbatches: list[MicroBatch]) -> list[tuple[int, int]]:
    return [(m.n_rows, m.row_tokens) for m in microbatches]


def predicted_ms(microbatches: list[MicroBatch], cost: CostModel, n_replicas: int) -> float:
    costs = microbatch_costs(microbatches, cost)
    return float(fill_ms(costs).max() + bottleneck_ms(costs).sum() / n_replicas)


def cut(samples: list[Sample], sizes: tuple[int, ...]) -> list[MicroBatch]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [samples[end - n : end] for end, n in zip(ends, sizes, strict=True)]
    return [
        PaddedRows(tuple(s.sample_id for s in part), -(-part[0].tokens // 8) * 8) for part in parts
    ]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    launch_ms=st.lists(st.floats(0.1, 3), min_size=1, max_size=4),
    n_replicas=st.integers(1, 3),
    room_tokens=st.integers(64, 300),
)
def test_no_split_that_fits_is_predicted_faster(
    lengths: list[int], launch_ms: list[float], n_replicas: int, room_tokens: int
) -> None:
    slopes = tuple(0.01 * (1 + stage % 3) for stage in range(len(launch_ms)))
    cost = linear_cost(tuple(launch_ms), slopes, token_bytes=2.0, model_bytes=50.0)
    cluster = Cluster(n_replicas=n_replicas, n_stages=4, device_memory_bytes=50 + 3 * room_tokens)
    samples = order_samples(samples_of(lengths))
    splits = (cut(samples, sizes) for sizes in every_cut(len(samples)))
    fitting = [s for s in splits if all(m.padded_tokens <= room_tokens for m in s)]

    found = split_samples(samples, cost, cluster)
    assert found in fitting
    best_ms = min(predicted_ms(s, cost, n_replicas) for s in fitting)
    found_ms = predicted_ms(found, cost, n_replicas)
    assert found_ms == pytest.approx(best_ms) or (
        found_ms > best_ms and len(found) >= n_replicas > 1
    )


def test_short_samples_are_padded_to_the_longest_of_their_micro_batch_only() -> None:
    samples = order_samples(samples_of([100, 3, 9, 97, 11, 16]))
    cost = linear_cost(launch_ms=(0.1,), token_ms=(0.01,))
    assert shapes(split_samples(samples, cost, ROOMY)) == [(2, 104), (4, 16)]


def test_only_a_sample_that_would_not_fit_otherwise_is_recomputed() -> None:
    samples = order_samples(samples_of([200, 16, 16]))
    cost = linear_cost((0.1,), (0.01,), token_bytes=2.0, recomputes=True)
    found = split_samples(samples, cost, Cluster(device_memory_bytes=300))
    assert [(m.n_rows, m.row_tokens, m.recompute) for m in found] == [
        (1, 200, Recompute.FULL),
        (2, 16, Recompute.NONE),
    ]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    launch_ms=st.floats(0.1, 9),
    n_replicas=st.integers(1, 2),
    room_tokens=st.integers(64, 200),
)
def test_no_split_in_modes_that_fit_is_predicted_faster(
    lengths: list[int], launch_ms: float, n_replicas: int, room_tokens: int
) -> None:
    cost = linear_cost((launch_ms, 1.0), (0.01, 0.02), token_bytes=4.0, recomputes=True)
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=4 * room_tokens)
    samples = order_samples(samples_of(lengths))
    room_bytes = activation_room_bytes(cost, cluster)
    splits = (
        in_cheapest_modes(cut(samples, sizes), cost, room_bytes)
        for sizes in every_cut(len(samples))
    )
    best_ms = min(predicted_ms(s, cost, n_replicas) for s in splits if s)

    found = split_samples(samples, cost, cluster)
    assert fits(microbatch_costs(found, cost), room_bytes).all()
    found_ms = predicted_ms(found, cost, n_replicas)
    assert found_ms == pytest.approx(best_ms) or (
        found_ms > best_ms and len(found) >= n_replicas > 1
    )


def in_cheapest_modes(
    microbatches: list[MicroBatch], cost: CostModel, room_bytes: FloatArray
) -> list[MicroBatch]:
    """Each in the fastest mode that fits; none at all where one of them fits in no mode."""
    found = []
    for microbatch in microbatches:
        tried = [replace(microbatch, recompute=mode) for mode in cost.recompute_modes]
        fitting = [m for m in tried if fits(microbatch_costs([m], cost), room_bytes).all()]
        found += fitting[:1]  # modes come in the order of their times here
    return found if len(found) == len(microbatches) else []


def test_slow_launches_make_few_micro_batches() -> None:
    samples = order_samples(samples_of([100, 3, 9, 97, 11, 16]))
    cost = linear_cost(launch_ms=(9.0,), token_ms=(0.01,))
    assert shapes(split_samples(samples, cost, ROOMY)) == [(6, 104)]


def test_more_stages_make_smaller_micro_batches() -> None:
    samples = order_samples(samples_of([8] * 12))
    cost = linear_cost(launch_ms=(0.1,) * 4, token_ms=(0.01,) * 4)
    assert shapes(split_samples(samples, cost, ROOMY)) == [(2, 8)] * 6


def test_every_replica_gets_a_micro_batch_where_one_would_be_fastest() -> None:
    samples = order_samples(samples_of([8] * 7))
    cluster = Cluster(n_replicas=3, device_memory_bytes=10**9)
    found = split_samples(samples, linear_cost((9.0,), (0.01,)), cluster)
    assert len(found) >= 3


def test_a_sample_that_no_stage_can_hold_is_named_with_the_way_out() -> None:
    samples = order_samples(samples_of([10, 500]))
    cost = linear_cost(token_bytes=2.0, model_bytes=100.0)
    with pytest.raises(
        DoesNotFitError,
        match=r"sample 1 \(499 input \+ 1 target tokens\) on its own needs 1,612 bytes on "
        r"stage 0, of which 100 for the model, but cluster\.device_memory_bytes is 1,000; "
        r"raise it, add stages, allow .full. in planner\.cost\.recompute, "
        r"or cut long samples with data\.max_tokens",
    ):
        split_samples(samples, cost, Cluster(n_stages=2, device_memory_bytes=1000))


def test_a_sample_longer_than_what_was_measured_is_named_apart() -> None:
    samples = order_samples(samples_of([10, 70]))
    with pytest.raises(NotMeasuredError, match=r"sample 1 .* of what the cost model knows"):
        split_samples(samples, linear_cost(longest_row=64), ROOMY)


def test_samples_in_any_order_are_padded_to_the_longest_of_their_micro_batch() -> None:
    found = split_samples(samples_of([10, 70, 8]), linear_cost(launch_ms=(9.0, 9.0)), ROOMY)
    assert [(m.sample_ids, m.row_tokens) for m in found] == [((0, 1, 2), 72)]
