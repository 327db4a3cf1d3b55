"""Largest windows that fit, found from windows of 1, 2, 4, ... samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_bytes
from dynapipe_hpc.planner.batch.windows.window_lookup import Extent, Rated, WindowLookup
from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes


@dataclass(frozen=True, slots=True, eq=False)
class Doubling:
    """Windows of 1, 2, 4, ... samples, or of all samples that are left.

    Attributes:
        lookup: Look-up of the windows.
        size: Number of samples of each window, shape (n_sizes, n_rows).
        longest: Length of the longest of so many samples from each sample on, per side, shape
            (n_sizes, n_samples).
        rated: Ratings per mode of n_sizes * n_rows windows, those of one sample first.
    """

    lookup: WindowLookup
    size: IntArray
    longest: tuple[IntArray, ...]
    rated: Sequence[Rated]

    @classmethod
    def of(cls, lookup: WindowLookup) -> Self:
        """Looks them up in every mode."""
        n_left = len(lookup.lengths.row_tokens) - lookup.first
        sizes = 2 ** np.arange(int(n_left[0] - 1).bit_length() + 1)
        size = np.minimum(sizes[:, None], n_left)
        longest = tuple(_longest(side, sizes) for side in lookup.lengths)
        longest_of_rows = (side[:, lookup.first].ravel() for side in longest)
        shapes = Shapes(lookup.n_samples(size).ravel(), *longest_of_rows)
        rated = [lookup.rated(shapes, mode) for mode in lookup.cost.recompute_modes]
        return cls(lookup, size, longest, rated)

    def extents(self) -> Iterator[Extent]:
        """The extents of the windows of every mode."""
        for rated, mode in zip(self.rated, self.lookup.cost.recompute_modes, strict=True):
            yield self._extent(rated, mode)

    def _extent(self, rated: Rated, mode: Recompute) -> Extent:
        """The largest windows of a mode.

        Memory grows almost linearly with the number of samples, so the size at which it reaches the
        limit is estimated by linear interpolation. One window of that size is tried. If it does not
        fit, no larger window is used; if it does, windows up to the next of the sizes may be.
        """
        rows, n_sizes = np.arange(self.size.shape[1]), len(self.size)
        fits = np.isfinite(rated.ratings.memory_share).reshape(self.size.shape)
        n_fitting = np.where(fits.any(axis=0), n_sizes - np.argmax(fits[::-1], axis=0), 0)
        low, high = np.maximum(n_fitting - 1, 0), np.minimum(n_fitting, n_sizes - 1)
        largest, limit = self.size[low, rows], self.size[high, rows]
        needed = activation_bytes(rated.costs).reshape(*self.size.shape, -1)
        before, after = needed[low, rows], needed[high, rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.min((self.lookup.room_bytes - before) / (after - before), axis=1)
        steps = np.where((share >= 0) & (share < 1), share, 1) * (limit - largest)
        tried = np.minimum(largest + steps.astype(np.int64) + 1, limit)
        most = np.where((n_fitting == n_sizes) | self._fits(tried, low, mode), limit, tried - 1)
        return Extent(np.where(n_fitting, largest, 0), np.where(n_fitting, most, 0))

    def _fits(self, size: IntArray, low: IntArray, mode: Recompute) -> BoolArray:
        """Whether windows fit that two overlapping windows of the size with index `low` cover."""
        first = self.lookup.first
        second = first + size - self.size[low, np.arange(len(first))]
        longest = (np.maximum(side[low, first], side[low, second]) for side in self.longest)
        rated = self.lookup.rated(Shapes(self.lookup.n_samples(size), *longest), mode)
        return np.isfinite(rated.ratings.memory_share)


def _longest(side: IntArray, sizes: IntArray) -> IntArray:
    """Length of the longest of so many samples from each sample on; each size doubles the last."""
    longest = np.tile(side, (len(sizes), 1))
    for half, whole, size in zip(longest[:-1], longest[1:], sizes[:-1], strict=True):
        whole[:] = half
        np.maximum(half[:-size], half[size:], out=whole[:-size])
    return longest
