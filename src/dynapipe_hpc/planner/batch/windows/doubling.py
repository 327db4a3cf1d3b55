"""Largest windows that fit, found from windows of 1, 2, 4, ... samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_bytes
from dynapipe_hpc.planner.batch.windows.window_lookup import Extent, Rated, WindowLookup
from dynapipe_hpc.planner.cost.cost_model import IntArray, StageCosts


@dataclass(frozen=True, slots=True, eq=False)
class Doubling:
    """Windows of 1, 2, 4, ... samples, or of the most that are worth a look.

    Attributes:
        lookup: Look-up of the windows.
        size: Number of samples of each window, shape (n_sizes, n_rows).
        rated: Ratings per mode of n_sizes * n_rows windows, those of one sample first.
    """

    lookup: WindowLookup
    size: IntArray
    rated: Sequence[Rated]

    @classmethod
    def from_lookup(cls, lookup: WindowLookup) -> Self:
        """Looks them up in every mode."""
        most = lookup.windows.most(lookup.first)
        sizes = 2 ** np.arange(int(most.max() - 1).bit_length() + 1)
        size = np.minimum(sizes[:, None], most)
        shapes = lookup.windows.shapes(np.tile(lookup.first, len(sizes)), size.ravel())
        rated = [lookup.rated(shapes, recompute) for recompute in lookup.cost.recompute_modes]
        return cls(lookup, size, rated)

    def extents(self) -> Iterator[Extent]:
        """The extents of the windows of every mode."""
        for rated, recompute in zip(self.rated, self.lookup.cost.recompute_modes, strict=True):
            yield self._extent(rated, recompute)

    def _extent(self, rated: Rated, recompute: Recompute) -> Extent:
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
        needed = activation_bytes(StageCosts(rated.costs.of_kinds))
        needed = needed.reshape(*self.size.shape, -1)
        before, after = needed[low, rows], needed[high, rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.min((self.lookup.room_of_kinds - before) / (after - before), axis=1)
        steps = np.where((share >= 0) & (share < 1), share, 1) * (limit - largest)
        tried = np.minimum(largest + steps.astype(np.int64) + 1, limit)
        most = np.where((n_fitting == n_sizes) | self._fits(tried, recompute), limit, tried - 1)
        return Extent(np.where(n_fitting, largest, 0), np.where(n_fitting, most, 0))

    def _fits(self, size: IntArray, recompute: Recompute) -> BoolArray:
        """Whether windows of some size fit, one per row."""
        rated = self.lookup.rated(self.lookup.windows.shapes(self.lookup.first, size), recompute)
        return np.isfinite(rated.ratings.memory_share)
