from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost, samples_of

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import packed_balanced, packed_next_fit
from dynapipe_hpc.planner.baselines.padded_rows import (
    Grouping,
    dense_packing,
    naive_padding,
    token_budget,
)
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.order import TooFewMicroBatchesError

PADDED: dict[str, tuple[Grouping, int]] = {
    "dense packing": (dense_packing, 2),
    "naive padding": (naive_padding, 3),
    "token budget": (token_budget, 128),
}
PACKED: dict[str, tuple[Grouping, int]] = {
    "next fit": (packed_next_fit, 100),
    "balanced": (packed_balanced, 100),
}

COST = linear_cost(launch_ms=(1.0, 0.5, 2.0), token_ms=(0.01, 0.02, 0.01), model_bytes=10.0)
BYTES_PER_TOKEN = 3  # of `linear_cost`: 2 stored and at most 1 transient

EVERY = PADDED | PACKED
every_grouping = pytest.mark.parametrize(("grouping", "setting"), EVERY.values(), ids=EVERY.keys())
every_packing = pytest.mark.parametrize(("grouping", "setting"), PACKED.values(), ids=PACKED.keys())
lengths = st.lists(st.integers(1, 128), min_size=1, max_size=30)
pairs = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), min_size=1, max_size=20)


def grouped(
    grouping: Grouping, setting: int, lengths: list[int], n_replicas: int
) -> list[MicroBatch]:
    """The micro-batches of all replicas, none of which is empty; together they hold each sample."""
    assume(len(lengths) >= n_replicas)
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=10**9)
    replicas = grouping(samples_of(lengths), COST, cluster, setting)
    assert len(replicas) == n_replicas
    assert all(replicas)
    microbatches = [m for replica in replicas for m in replica]
    assert sorted(i for m in microbatches for i in m.sample_ids) == list(range(len(lengths)))
    return microbatches


@every_grouping
@given(lengths=lengths, n_replicas=st.integers(1, 3))
def test_every_sample_is_there_once_in_a_row_that_holds_it_where_offsets_say(
    grouping: Grouping, setting: int, lengths: list[int], n_replicas: int
) -> None:
    for m in grouped(grouping, setting, lengths, n_replicas):
        assert m.row_tokens % 8 == 0
        assert all(m.rows)
        assert max(sum(lengths[i] for i in row) for row in m.rows) <= m.row_tokens
        assert isinstance(m, PackedRow) == (grouping in (packed_balanced, packed_next_fit))
        if not isinstance(m, PackedRow):
            continue
        row = m.sample_ids
        assert m.offsets[0] == 0
        assert [end - begin for begin, end in pairwise(m.offsets)] == [lengths[i] for i in row]
        assert m.offsets[-1] <= m.row_tokens < m.offsets[-1] + 8
        assert (m.target_tokens, m.target_offsets) == (0, ())


@every_packing
@given(pairs=pairs, n_replicas=st.integers(1, 3))
def test_both_sides_of_every_pair_lie_where_their_offsets_say(
    grouping: Grouping, setting: int, pairs: list[tuple[int, int]], n_replicas: int
) -> None:
    assume(len(pairs) >= n_replicas)
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=10**9)
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    replicas = grouping(samples, replace(COST, is_encoder_decoder=True), cluster, setting)
    microbatches = [m for replica in replicas for m in replica]
    assert all(replicas)
    assert sorted(i for m in microbatches for i in m.sample_ids) == list(range(len(pairs)))
    for m in microbatches:
        assert isinstance(m, PackedRow)
        row = m.sample_ids
        for offsets, n_tokens, side in (
            (m.offsets, m.row_tokens, [max(pairs[i][0], 1) for i in row]),
            (m.target_offsets, m.target_tokens, [pairs[i][1] for i in row]),
        ):
            assert offsets == tuple(accumulate(side, initial=0))
            assert n_tokens == -(-offsets[-1] // 8) * 8
        if len(row) > 1 and grouping is not packed_balanced:
            assert m.offsets[-1] + m.target_offsets[-1] <= 100


@every_packing
@given(lengths=lengths, n_replicas=st.integers(2, 4))
def test_replicas_have_as_many_micro_batches_unless_one_has_too_few_samples(
    grouping: Grouping, setting: int, lengths: list[int], n_replicas: int
) -> None:
    assume(len(lengths) >= n_replicas)
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=10**9)
    found = sorted(grouping(samples_of(lengths), COST, cluster, setting), key=len)
    if len(found[0]) < len(found[-1]):
        assert all(len(m.sample_ids) == 1 for m in found[0])


@every_grouping
@given(lengths=lengths, room_tokens=st.integers(1, 300))
def test_micro_batches_fit_or_an_error_says_which_does_not(
    grouping: Grouping, setting: int, lengths: list[int], room_tokens: int
) -> None:
    memory_bytes = 10 + BYTES_PER_TOKEN * room_tokens
    cluster = Cluster(n_stages=3, device_memory_bytes=memory_bytes)
    try:
        (found,) = grouping(samples_of(lengths), COST, cluster, setting)
    except DoesNotFitError as error:
        assert f"cluster.device_memory_bytes is {memory_bytes:,}" in str(error)
        unit = "rows" if grouping in (dense_packing, naive_padding) else "tokens"
        assert f"lower planner.batch.{unit}_per_microbatch" in str(error)
    else:
        assert all(m.padded_tokens <= room_tokens for m in found)


@every_grouping
def test_what_the_cost_model_does_not_know_is_an_error_of_its_own(
    grouping: Grouping, setting: int
) -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = linear_cost(launch_ms=(1.0,) * 3, token_ms=(0.01,) * 3, longest_row=32)
    with pytest.raises(NotMeasuredError, match="outside of what the cost model knows"):
        grouping(samples_of([120]), cost, cluster, setting)


@every_grouping
def test_fewer_samples_than_replicas_are_an_error(grouping: Grouping, setting: int) -> None:
    cluster = Cluster(n_replicas=3, n_stages=3, device_memory_bytes=10**9)
    with pytest.raises(TooFewMicroBatchesError, match="2 micro-batches for 3 replicas"):
        grouping(samples_of([5, 64]), COST, cluster, setting)
