"""Combination of the samples of a window into a micro-batch, by layout."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes

Cells = npt.NDArray[np.int32]


class ShapesOfRows(NamedTuple):
    """Shapes of all windows of the rows of a table.

    Attributes:
        cells: Row by row, index in `shapes` of windows of 1, 2, ... bundles.
    """

    cells: Cells
    shapes: Shapes


class LayoutWindows(Protocol):
    """Windows of ordered samples in one layout; in a large batch, of bundles of samples."""

    @property
    def layout(self) -> Layout:
        """Layout of the micro-batches."""
        ...

    @property
    def begin(self) -> IntArray:
        """Beginnings of bundles in the samples, and the end of the last, shape (n_bundles + 1,)."""
        ...

    def begin_rows(self) -> BoolArray:
        """Whether a row of the table begins with each bundle, as far as lengths tell.

        Other bundles share the row of the one before, as all their windows are alike.
        """
        ...

    def begin_rows_within(self, begins: BoolArray, reach: IntArray, /) -> BoolArray:
        """The same where windows must also have as many samples.

        Args:
            begins: Result of `begin_rows`.
            reach: Largest number of bundles of a window, for every row.
        """
        ...

    def most(self, first: IntArray) -> IntArray:
        """Largest number of bundles of windows from given bundles on that are worth a look."""
        ...

    def shapes(self, first: IntArray, size: IntArray) -> Shapes:
        """Shapes of windows of `size` bundles from `first` on, arrays of one dimension."""
        ...

    def shapes_of_rows(self, first: IntArray, most: IntArray) -> ShapesOfRows:
        """Shapes of the windows of 1 to `most` bundles from each of `first` on."""
        ...
