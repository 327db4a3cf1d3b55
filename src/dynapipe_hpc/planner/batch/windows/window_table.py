"""What windows of neighbouring samples cost, as a table to choose from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.windows.window_lookup import Cells, Ratings
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, Shapes, StageCosts


class CheapestModes(NamedTuple):
    """Every window in the mode in which it works least, row after row, by number of samples.

    Attributes:
        begin: Shape (n_rows + 1,), where the windows of a row begin, and the end.
        work_ms: See `Ratings`; infinite where the window may not be used.
        fill_ms: Likewise.
        mode: Index into the modes; 0 where the window may not be used.
    """

    begin: IntArray
    work_ms: FloatArray
    fill_ms: FloatArray
    mode: Cells


@dataclass(frozen=True, slots=True, eq=False)
class WindowTable:
    """What every padded micro-batch of neighbouring samples costs.

    Such a window is named by its first sample, its number of samples and its mode; in a large
    batch by its first bundle and its number of bundles, and what is said of samples is true of
    bundles. Samples whose windows are all alike, as those of one length in a sorted list, share a
    row of the table. Rows have as many cells in a mode as its windows have samples at most: those
    of short samples that keep little are long, most others short. Windows of the same shape share
    their costs.

    Attributes:
        samples: In the order to be cut.
        begin: Ascending, where bundles begin in `samples`, and the end; each has one if the batch
            is not large.
        modes: Those of the cost model.
        row_of_sample: Shape (n_bundles,), the row of each in the tables.
        cells: Index into `costs` of windows of 1, 2, ... samples, for every mode and row; -1
            where they may not be used.
        spans: Shape (n_modes, n_rows, 2), where the cells of a mode and row begin and end.
        shapes: Of what was looked up, usable or not.
        costs: As many, see `shapes`.
        ratings: As many.
    """

    samples: Sequence[Sample]
    begin: IntArray
    modes: tuple[Recompute, ...]
    row_of_sample: Cells
    cells: Cells
    spans: IntArray
    shapes: Shapes
    costs: StageCosts
    ratings: Ratings

    def of_at_most(self, max_samples: int) -> Self:
        """Those of at most `max_samples` samples."""
        begin, end = np.moveaxis(self.spans, 2, 0)
        return replace(self, spans=np.stack([begin, np.minimum(end, begin + max_samples)], axis=2))

    def in_mode(self, mode: int) -> Self:
        """Those in one mode, by index."""
        return replace(self, modes=(self.modes[mode],), spans=self.spans[mode : mode + 1])

    @property
    def every_sample_runs(self) -> bool:
        """Whether every sample alone may be used in the first mode."""
        return bool(self.runs_alone[0].all())

    @property
    def runs_alone(self) -> BoolArray:
        """Whether every row's window of one sample may be used, shape (n_modes, n_rows)."""
        begin, end = np.moveaxis(self.spans, 2, 0)
        first_cell = self.cells[np.minimum(begin, len(self.cells) - 1)]
        return np.asarray((begin < end) & (first_cell >= 0))

    def cheapest(self, memory_share: float = 1.0) -> CheapestModes:
        """The mode of every window, of those in which it keeps no more than its share."""
        return self._cheapest(self.ratings, memory_share)

    def least(self, entries: FloatArray) -> CheapestModes:
        """Every window in the mode of its least entry, without fill.

        Args:
            entries: One per micro-batch of `costs`; infinite where there is none to be had.
        """
        entries = np.ascontiguousarray(entries)
        nothing = np.zeros_like(entries)
        return self._cheapest(Ratings(entries, nothing, nothing), 1.0)

    def _cheapest(self, ratings: Ratings, memory_share: float) -> CheapestModes:
        found = _kernels.cheapest_modes(self.cells, self.spans, *ratings, memory_share)
        return CheapestModes(*found)

    def cells_of(self, windows: npt.NDArray[np.uint32]) -> Cells:
        """Which of `costs` windows have, see `cells`; rows are first sample, size and mode."""
        first, size, mode = windows.astype(np.int64).T
        begin, end = self.spans[mode, self.row_of_sample[first]].T
        place = begin + size - 1
        return np.where(place < end, self.cells[np.minimum(place, len(self.cells) - 1)], -1)

    def microbatch(self, first: int, size: int, mode: int) -> MicroBatch:
        """The window of `size` samples from `first` on, in the mode of an index."""
        cell = self.cells[self.spans[mode, self.row_of_sample[first], 0] + size - 1]
        held = self.samples[self.begin[first] : self.begin[first + size]]
        return MicroBatch(
            rows=tuple([(sample.sample_id,) for sample in held]),
            row_tokens=int(self.shapes.row_tokens[cell]),
            recompute=self.modes[mode],
            target_tokens=int(self.shapes.target_tokens[cell]),
        )
