import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.grouping import Grouping
from dynapipe_hpc.planner.baselines.padded_rows import (
    dense_packing,
    first_fit_decreasing,
    naive_padding,
    token_budget,
)

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


BASELINES: dict[str, tuple[Grouping, int]] = {
    "dense packing": (dense_packing, 2),
    "naive padding": (naive_padding, 8),
    "token budget": (token_budget, 10_000),
}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("n_replicas", [1, 3, 4, 6])
def test_every_replica_has_a_micro_batch(name: str, n_replicas: int) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=10**9)
    grouping, setting = BASELINES[name]
    found = grouping(samples_of([8, 30, 5, 7, 2, 11]), linear_cost(), cluster, setting)
    assert len(found) == n_replicas
    assert sorted(i for replica in found for m in replica for i in m.sample_ids) == list(range(6))


def test_naive_padding_pads_all_to_the_longest_in_order_of_arrival() -> None:
    samples = samples_of([3, 30, 5, 7, 2])
    (found,) = naive_padding(samples, linear_cost(), ROOMY, 2)
    assert found == [
        PaddedRows((0, 1), 32),
        PaddedRows((2, 3), 32),
        PaddedRows((4,), 32),
    ]


def test_samples_of_alike_length_fill_micro_batches_up_to_the_budget() -> None:
    (found,) = token_budget(samples_of([3, 30, 16, 15, 7, 2, 8]), linear_cost(), ROOMY, 32)
    assert [(m.row_tokens, m.n_rows) for m in found] == [(32, 1), (16, 2), (8, 4)]
    assert all(m.padded_tokens <= 32 for m in found)


ITEMS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=8)


@given(ITEMS)
def test_every_item_is_in_one_bin_and_no_bin_is_overfull(items: list[tuple[int, int]]) -> None:
    bins = first_fit_decreasing(np.array(items), np.array([20, 9]))
    assert sorted(i for found in bins for i in found) == list(range(len(items)))
    for found in bins:
        assert sum(items[i][0] for i in found) <= 20
        assert sum(items[i][1] for i in found) <= 9


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7))
def test_in_one_dimension_bins_are_at_most_11_for_9_of_the_best(sizes: list[int]) -> None:
    bins = first_fit_decreasing(np.array(sizes)[:, None], np.array([20]))
    assert len(bins) <= 11 / 9 * fewest_bins(sizes, 20) + 6 / 9


def fewest_bins(sizes: list[int], capacity: int) -> int:
    """By trying every way to put one item after the other."""

    def fewest(at: int, free: tuple[int, ...]) -> int:
        if at == len(sizes):
            return len(free)
        ways = [fewest(at + 1, (*free, capacity - sizes[at]))]
        for i, room in enumerate(free):
            if room >= sizes[at]:
                ways.append(fewest(at + 1, (*free[:i], room - sizes[at], *free[i + 1 :])))
        return min(ways)

    return fewest(0, ())
