"""Table of costs by window; a window holds neighbouring samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import Cut
from dynapipe_hpc.planner.cost.cost_model import Counts, IntArray, Shapes, StageCosts

Cells = npt.NDArray[np.int32]


class SliceCells(NamedTuple):
    """Slices of the samples that are sliced.

    `first`: Index in the costs of every micro-batch's first slice; its own index if not sliced.
    """

    first: Cells
    later: Counts
    cuts: Mapping[tuple[int, int], Cut]
    token_multiple: int = ROW_MULTIPLE  # multiple to fill rows of slices up to


NO_SLICES = SliceCells(np.zeros(0, np.int32), np.zeros(0, np.uint32), {})


@dataclass(frozen=True, slots=True, eq=False)
class WindowTable:
    """Costs of every micro-batch of neighbouring samples.

    Such a window is named by its first sample, its number of samples and the index of its mode. In
    a large batch bundles take the place of samples. Samples whose windows are all alike in all
    modes, such as those of one length in a sorted list if rows are padded, share a row of the
    table. In every mode, a row has as many cells as its largest window has samples: rows of short
    samples are long, most other rows are short. Windows of the same shape share their costs.

    `begin`: Beginnings of bundles in `samples`, ascending, and the end of the last bundle; in small
    batches each bundle has one sample. `cells`: Indices into `costs` of windows of 1, 2, ...
    samples, for every mode and row; -1 where they may not be used. `sliced`: Slices of the samples
    that run as slices; a sample's entry in `costs` adds up its slices.
    """

    samples: Sequence[Sample]  # samples in the order to be cut
    begin: IntArray
    modes: tuple[ExecutionMode, ...]
    row_of_sample: Cells  # row of each bundle in the tables, shape (n_bundles,)
    cells: Cells
    spans: IntArray  # begin and end of the cells of every mode and row, shape (n_modes, n_rows, 2)
    shapes: Shapes
    costs: StageCosts
    sliced: SliceCells = NO_SLICES

    @property
    def every_sample_runs(self) -> bool:
        """Whether every sample can run alone in some mode."""
        return bool(self.runs_alone.any(axis=0).all())

    @property
    def runs_alone(self) -> BoolArray:
        """Whether one sample of a row can run alone, shape (n_modes, n_rows)."""
        begin, end = np.moveaxis(self.spans, 2, 0)
        runs: BoolArray = begin < end
        runs[runs] = self.cells[begin[runs]] >= 0
        return runs

    @property
    def kernel_costs(self) -> _kernels.WindowCosts:
        """The table as an argument for kernels, to which its arrays become read-only."""
        windows = (self.cells, self.spans, self.row_of_sample)
        return _kernels.WindowCosts(
            self.costs.checked, *windows, self.sliced.first, self.sliced.later
        )

    def cells_of(self, windows: npt.NDArray[np.uint32]) -> Cells:
        """Indices into `costs`, see `cells`; a row of `windows` is first sample, size, mode."""
        first, size, mode = windows.astype(np.int64).T
        begin, end = self.spans[mode, self.row_of_sample[first]].T
        place = begin + size - 1
        return np.where(place < end, self.cells[np.minimum(place, len(self.cells) - 1)], -1)

    def microbatches(self, first: int, size: int, mode: int) -> Sequence[MicroBatch]:
        """The micro-batch of a window (see `microbatch`), or the slices of a sliced sample."""
        cut = self.sliced.cuts.get((first, mode))
        if cut is None:
            return (self.microbatch(first, size, mode),)
        return cut.rows(self.modes[mode], self.sliced.token_multiple)

    def microbatches_of(self, windows: npt.NDArray[np.uint32]) -> list[MicroBatch]:
        """Micro-batches of windows; each slice is a micro-batch."""
        return [each for window in windows.tolist() for each in self.microbatches(*window)]

    def priced(self, windows: npt.NDArray[np.uint32]) -> PricedReplica:
        """The micro-batches of the windows of a replica."""
        key = (self, windows.tobytes())
        return PricedReplica(partial(self.microbatches_of, windows), self.costs_of(windows), key)

    def costs_of(self, windows: npt.NDArray[np.uint32]) -> StageCosts:
        """Costs of the micro-batches of windows; each slice is a micro-batch."""
        cells = self.cells_of(windows).astype(np.int64)
        if not self.sliced.cuts:
            return self.costs.take(cells)
        first = self.sliced.first[cells]
        parts = [
            np.arange(begin, begin + 1 + (self.sliced.later[begin] if begin != cell else 0))
            for cell, begin in zip(cells.tolist(), first.tolist(), strict=True)
        ]
        return replace(self.costs, later_slices=self.sliced.later).take(np.concatenate(parts))

    def microbatch(self, first: int, size: int, mode: int) -> MicroBatch:
        """The micro-batch of the window of `size` samples from `first` on, in the given mode."""
        layout, recompute, *_ = self.modes[mode]
        held = self.samples[self.begin[first] : self.begin[first + size]]
        cell = self.cells[self.spans[mode, self.row_of_sample[first], 0] + size - 1]
        if layout is Layout.PACKED:
            n_rows, row_tokens, target_tokens, _ = (sizes[cell] for sizes in self.shapes)
            return packed_microbatch(
                held,
                recompute,
                is_encoder_decoder=bool(target_tokens > 0),
                row_tokens=round(n_rows * row_tokens),
                target_tokens=round(n_rows * target_tokens),
            )
        return PaddedRows(
            sample_ids=tuple([sample.sample_id for sample in held]),
            row_tokens=int(self.shapes.row_tokens[cell]),
            recompute=recompute,
            target_tokens=int(self.shapes.target_tokens[cell]),
        )
