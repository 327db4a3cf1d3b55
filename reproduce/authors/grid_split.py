"""Cuts ordered samples as the authors of the paper do: limits on a grid, in single precision."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SingleArray = npt.NDArray[np.float32]

LIMITS_AT_A_TIME = 256  # so that the sums of one sample after the other stay in cache


class GridCut(NamedTuple):
    """A cut of samples.

    Attributes:
        sizes: Number of samples of every micro-batch.
        objective_ms: What it was chosen by.
    """

    sizes: list[int]
    objective_ms: float


def grid_split(
    times_ms: SingleArray, n_stages: int, n_replicas: int, interval_ms: float
) -> GridCut | None:
    """Cuts samples where the predicted iteration is shortest, for some limits on a micro-batch.

    For every limit on the grid, the cut with the least sum of times of which none exceeds the
    limit; of these, the one with the least

        (n_stages - 1) * limit + sum / n_replicas        [ms]

    where the limit counts, not the longest time within it.

    Args:
        times_ms: Shape (n_samples, max_samples); entry (i, k) is of samples i to i + k. In every
            row, the entries that may be used come first; the others are infinite.
        n_stages: Stages of the pipeline.
        n_replicas: Replicas that share the work.
        interval_ms: See `grid_limits`.

    Returns:
        The cut; None if there is none within any limit, which also happens where one within the
        largest time exists, as that need not be on the grid.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and 2,
        and its artifact.
    """
    limits = grid_limits(times_ms, interval_ms)
    parts = np.split(limits, range(LIMITS_AT_A_TIME, len(limits), LIMITS_AT_A_TIME))
    sums = np.concatenate([_least_sums(times_ms, part)[-1] for part in parts])
    objective = np.float32(n_stages - 1) * limits + sums / np.float32(n_replicas)
    if not np.isfinite(objective).any():
        return None
    best = [np.argmin(objective)]
    return GridCut(_sizes(times_ms, limits[best]), float(objective[best[0]]))


def grid_limits(times_ms: SingleArray, interval_ms: float) -> SingleArray:
    """Sorted distinct times, thinned so that neighbours differ by more than `interval_ms`."""
    ascending = np.unique(times_ms[np.isfinite(times_ms)])
    limits: list[np.float32] = []
    at = 0
    while at < len(ascending):
        limits.append(ascending[at])
        beyond = ascending[at] + np.float32(interval_ms)
        at = int(np.searchsorted(ascending, beyond, side="right"))
    return np.array(limits, np.float32)


def _least_sums(times_ms: SingleArray, limits: SingleArray) -> SingleArray:
    """Least sum of times over the cuts of the first n samples, shape (n_samples + 1, n_limits)."""
    sums = np.full((len(times_ms) + 1, len(limits)), np.inf, np.float32)
    sums[0] = 0
    for first, n_usable in enumerate(np.isfinite(times_ms).sum(axis=1)):
        times = times_ms[first, :n_usable, np.newaxis]
        allowed = np.where(times <= limits, times, np.float32(np.inf))
        behind = sums[first + 1 : first + 1 + n_usable]
        np.minimum(behind, sums[first] + allowed, out=behind)
    return sums


def _sizes(times_ms: SingleArray, limit: SingleArray) -> list[int]:
    """The cut with the least sum within a limit of shape (1,), the last one as long as it can."""
    sums = _least_sums(times_ms, limit)[:, 0]
    sizes: list[int] = []
    n_left = len(times_ms)
    while n_left:
        firsts = np.arange(max(0, n_left - times_ms.shape[1]), n_left)
        times = times_ms[firsts, n_left - 1 - firsts]
        totals = np.where(times <= limit, sums[firsts] + times, np.inf)
        sizes.append(n_left - int(firsts[np.argmin(totals)]))
        n_left -= sizes[-1]
    return sizes[::-1]
