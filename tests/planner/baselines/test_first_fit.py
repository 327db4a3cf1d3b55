"""Packing against what every bin packing has to keep, and against trying everything."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.planner.baselines.first_fit import first_fit_decreasing

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
