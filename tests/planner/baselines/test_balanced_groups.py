"""Groups against what every balance has to keep, and against trying everything."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.planner.baselines.baseline import (
    MIN_GAIN,
    balanced_groups,
    lower_by_swaps,
)

WORK = st.lists(st.integers(1, 50), min_size=1, max_size=7)


def sums(work: list[int], groups: list[list[int]]) -> list[int]:
    return sorted(sum(work[i] for i in items) for items in groups)


def least_largest(work: list[int], n_groups: int) -> int:
    """By trying every assignment."""
    every = product(range(n_groups), repeat=len(work))
    return min(max(sum(w for w, g in zip(work, a, strict=True) if g == k) for k in range(n_groups))
               for a in every)  # fmt: skip


@given(WORK, st.integers(1, 3))
def test_every_item_is_in_one_group_and_no_group_is_far_too_large(work: list[int], n: int) -> None:
    if len(work) < n:
        return
    groups = balanced_groups(np.array(work, float), n)
    assert sorted(i for items in groups for i in items) == list(range(len(work)))
    assert all(items and items == sorted(items) for items in groups)
    best = least_largest(work, n)
    assert best <= sums(work, groups)[-1] <= best * (4 / 3 - 1 / (3 * n)) + 1e-9


@pytest.mark.parametrize(
    ("work", "n_groups", "best"),
    [
        ([8, 7, 6, 5, 4], 2, [15, 15]),  # differencing alone ends with 14 and 16
        ([5, 5, 5, 4, 4, 3, 3, 1], 3, [10, 10, 10]),
        ([9, 9, 1, 1], 2, [10, 10]),
        ([4, 4, 4], 3, [4, 4, 4]),
    ],
)
def test_small_cases_are_as_even_as_can_be(work: list[int], n_groups: int, best: list[int]) -> None:
    assert sums(work, balanced_groups(np.array(work, float), n_groups)) == best


GROUPED = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 4)), min_size=1, max_size=30)


@given(GROUPED)
def test_swaps_end_where_none_lowers_the_largest_sum(items: list[tuple[int, int]]) -> None:
    work = [w for w, _ in items]
    numbers = sorted({g for _, g in items})
    before = [[i for i, (_, g) in enumerate(items) if g == k] for k in numbers]
    after = lower_by_swaps(np.array(work, float), before)
    assert sums(work, after)[-1] <= sums(work, before)[-1]
    assert [len(group) for group in after] == [len(group) for group in before]
    assert sorted(i for group in after for i in group) == list(range(len(items)))

    largest = max(after, key=lambda group: sum(work[i] for i in group))
    n_largest = sum(work[i] for i in largest)
    for other in after:
        for i, j in product(largest, other if other is not largest else []):
            given = work[i] - work[j]
            larger = max(n_largest - given, sum(work[k] for k in other) + given)
            if sums(work, after).count(n_largest) == 1:
                assert larger >= (1 - MIN_GAIN) * n_largest
