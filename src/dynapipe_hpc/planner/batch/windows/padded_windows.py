"""Windows whose samples have a row each, padded to the longest of them."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.batch.windows.layout_windows import ShapesOfRows
from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes


@dataclass(frozen=True, slots=True, eq=False)
class PaddedWindows:
    """Windows of padded rows, see `LayoutWindows`: as many rows as samples, as long as the longest.

    Attributes:
        lengths: Row lengths of the samples, or of the longest sample of each bundle.
        begin: Beginnings of bundles in the samples, and the end of the last bundle.
        longest: Length of the longest of 1, 2, 4, ... bundles from each on, or of all that are
            left, per side, shape (n_sizes, n_bundles).
    """

    lengths: RowLengths
    begin: IntArray
    longest: tuple[IntArray, ...]

    @classmethod
    def from_lengths(cls, lengths: RowLengths, begin: IntArray) -> Self:
        """Windows of bundles of samples with the given row lengths."""
        of_bundles = RowLengths(*(np.maximum.reduceat(side, begin[:-1]) for side in lengths))
        return cls(of_bundles, begin, tuple(map(_longest, of_bundles)))

    @property
    def layout(self) -> Layout:
        """Padded."""
        return Layout.PADDED

    def begin_rows(self) -> BoolArray:
        """Positions at which lengths change, see `LayoutWindows`.

        A sample needs no row of its own if it is as long as the one before it and none after it is
        longer: then all its windows are like those of the one before.
        """
        sides = [(side[1:] == side[:-1]) & _is_longest(side) for side in self.lengths]
        return np.concatenate([[True], ~np.logical_and.reduce(sides)])

    def begin_rows_within(self, begins: BoolArray, reach: IntArray, /) -> BoolArray:
        """Also where numbers of samples change within reach, see `LayoutWindows`."""
        n_samples = np.diff(self.begin)
        n_bundles = len(n_samples)
        changes = np.append(np.flatnonzero(np.diff(n_samples)) + 1, n_bundles + reach.max())
        next_change = changes[np.searchsorted(changes, np.flatnonzero(begins), side="right")]
        row = np.cumsum(begins) - 1
        return np.asarray(begins | (np.arange(n_bundles) + reach[row] > next_change[row]))

    def most(self, first: IntArray) -> IntArray:
        """All bundles that are left: padding ends windows soon enough."""
        return len(self.begin) - 1 - first

    def shapes(self, first: IntArray, size: IntArray) -> Shapes:
        """Rows of the longest sample, one per sample."""
        power = np.frexp(size.astype(np.float64))[1] - 1  # two windows of 2^power cover it
        second = first + size - (1 << power)
        row_tokens, target_tokens = (
            np.maximum(side[power, first], side[power, second]) for side in self.longest
        )
        return Shapes.padded(
            self.begin[first + size] - self.begin[first], row_tokens, target_tokens
        )

    def shapes_of_rows(self, first: IntArray, most: IntArray) -> ShapesOfRows:
        """Shapes that neighbouring rows share, see window_shapes.hpp."""
        shapes = _kernels.window_shapes(*self.lengths, self.begin, first, most)
        return ShapesOfRows(
            shapes.cells, Shapes.padded(shapes.n_rows, shapes.row_tokens, shapes.target_tokens)
        )


def _is_longest(side: IntArray) -> BoolArray:
    """Whether no later sample is longer, from the second sample on."""
    return np.asarray(np.maximum.accumulate(side[::-1])[::-1][1:] == side[1:])


def _longest(side: IntArray) -> IntArray:
    sizes = 2 ** np.arange(int(len(side) - 1).bit_length() + 1)
    longest = np.tile(side, (len(sizes), 1))
    for half, whole, size in zip(longest[:-1], longest[1:], sizes[:-1], strict=True):
        whole[:] = half
        np.maximum(half[:-size], half[size:], out=whole[:-size])
    return longest
