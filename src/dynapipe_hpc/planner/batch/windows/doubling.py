"""Windows of 1, 2, 4, ... samples: how large windows may be, from few of them."""

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
    """Windows of 1, 2, 4, ... samples, or of all that are left.

    Attributes:
        lookup: Of the windows.
        size: Shape (n_sizes, n_rows).
        longest: Per side, shape (n_sizes, n_samples): of so many samples from each one on.
        rated: Per mode, n_sizes * n_rows windows, those of one sample first.
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
        """Those of the modes."""
        for rated, mode in zip(self.rated, self.lookup.cost.recompute_modes, strict=True):
            yield self._extent(rated, mode)

    def _extent(self, rated: Rated, mode: Recompute) -> Extent:
        """Memory grows almost evenly with samples, so what fits is close to the straight line.

        One window where the line passes the limit is tried. If it does not fit, none beyond is
        used; if it does, it may be any up to the next of the sizes.
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
        """Whether windows fit of which two of a size, the one with index `low`, hold all."""
        first = self.lookup.first
        second = first + size - self.size[low, np.arange(len(first))]
        longest = (np.maximum(side[low, first], side[low, second]) for side in self.longest)
        rated = self.lookup.rated(Shapes(self.lookup.n_samples(size), *longest), mode)
        return np.isfinite(rated.ratings.memory_share)


def _longest(side: IntArray, sizes: IntArray) -> IntArray:
    """Of `sizes` samples, each twice the one before, or all that are left, from each one on."""
    longest = np.tile(side, (len(sizes), 1))
    for half, whole, size in zip(longest[:-1], longest[1:], sizes[:-1], strict=True):
        whole[:] = half
        np.maximum(half[:-size], half[size:], out=whole[:-size])
    return longest
