from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import deal, next_fit, packed_next_fit

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_only_the_last_bin_is_open_and_what_is_too_large_is_alone() -> None:
    # 4 would fit beside 3 if bins had 7, and the second 1 beside 5 if a bin could open again.
    assert next_fit([3, 4, 2, 6, 1, 5, 1, 9, 2], 6) == [[0], [1, 2], [3], [4, 5], [6], [7], [8]]


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 20))
def test_two_bins_in_a_row_hold_more_than_one_can(sizes: list[int], capacity: int) -> None:
    bins = next_fit(sizes, capacity)
    assert [i for items in bins for i in items] == list(range(len(sizes)))
    held = [sum(sizes[i] for i in items) for items in bins]
    assert all(one + other > capacity for one, other in pairwise(held))
    over = [items for items, n in zip(bins, held, strict=True) if n > capacity]
    assert all(len(items) == 1 for items in over)


def test_samples_lie_end_to_end_in_order_of_arrival() -> None:
    (found,) = packed_next_fit(samples_of([9, 11, 7, 5, 30]), linear_cost(), ROOMY, 20)
    assert found == [
        PackedRow((0, 1), 24, offsets=(0, 9, 20)),
        PackedRow((2, 3), 16, offsets=(0, 7, 12)),
        PackedRow((4,), 32, offsets=(0, 30)),
    ]


def test_the_last_rows_are_split_until_every_replica_has_as_many() -> None:
    replicas = Cluster(n_replicas=4, n_stages=2, device_memory_bytes=10**9)
    found = packed_next_fit(samples_of([8, 8, 8, 8, 8, 24]), linear_cost(), replicas, 24)
    # Rows (0 1 2), (3 4) and (5), of which the second gives its last sample.
    assert [[m.sample_ids for m in replica] for replica in found] == [
        [(0, 1, 2)],
        [(3,)],
        [(5,)],
        [(4,)],
    ]


def test_rows_are_dealt_in_turns() -> None:
    assert deal([[0], [1, 2], [3], [4]], 2) == [[[0], [3]], [[1, 2], [4]]]
    assert deal([[0], [1, 2], [3]], 2) == [[[0], [3]], [[1], [2]]]
