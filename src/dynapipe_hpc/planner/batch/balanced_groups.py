"""Items in groups of about the same work."""

import numpy as np

from dynapipe_hpc.planner.batch.replicas import balance
from dynapipe_hpc.planner.cost.cost_model import FloatArray

MIN_GAIN = 1e-4
"""Least share of the largest sum by which an exchange has to lower it."""


def balanced_groups(work: FloatArray, n_groups: int) -> list[list[int]]:
    """Groups items by the largest differencing method, and exchanges items to improve on that.

    Args:
        work: Work of every item, finite.
        n_groups: Number of groups, each of which gets an item.

    Returns:
        Per group its items, ascending.

    Raises:
        TooFewMicroBatchesError: There are fewer items than groups.

    Source:
        `planner.batch.replicas.balance`; the refinement by swaps as in prime-rl.
    """
    return lower_by_swaps(work, balance(work, n_groups))


def lower_by_swaps(work: FloatArray, groups: list[list[int]]) -> list[list[int]]:
    """Exchanges an item of the fullest group with one of another while that lowers the larger sum.

    Of all exchanges, the one that leaves the smaller of the larger sums is made. The largest sum
    of all groups never grows.

    Args:
        work: Work of every item.
        groups: Items of every group.
    """
    group_of = np.empty(len(work), np.int64)
    for number, items in enumerate(groups):
        group_of[items] = number
    while True:
        sums = np.bincount(group_of, work)
        fullest = int(sums.argmax())
        inside, outside = (np.flatnonzero(group_of == fullest), np.flatnonzero(group_of != fullest))
        if not outside.size:
            break
        given = work[inside][:, np.newaxis] - work[outside]
        larger = np.maximum(sums[fullest] - given, sums[group_of[outside]] + given)
        one, other = np.unravel_index(larger.argmin(), larger.shape)
        if larger[one, other] >= (1 - MIN_GAIN) * sums[fullest]:
            break
        swapped = [inside[one], outside[other]]
        group_of[swapped] = group_of[swapped[::-1]]
    return [np.flatnonzero(group_of == number).tolist() for number in range(len(groups))]
