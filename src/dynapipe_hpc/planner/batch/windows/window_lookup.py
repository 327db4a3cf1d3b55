"""Look-up of windows of neighbouring samples in a cost model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.batch.windows.layout_windows import Cells, LayoutWindows
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)


class Ratings(NamedTuple):
    """Measures by which micro-batches are compared before scheduling. Shape (n_microbatches,).

    Attributes:
        work_ms: Forward and backward time on the slowest stage of each.
        fill_ms: Forward and backward time on all its other stages.
        memory_share: Largest fraction that it keeps of the memory that the model leaves on a
            stage; 0 for one sample alone, infinite if it cannot run.
    """

    work_ms: FloatArray
    fill_ms: FloatArray
    memory_share: FloatArray


class Rated(NamedTuple):
    """Micro-batches that were looked up: shapes, costs and ratings of equal number."""

    shapes: Shapes
    costs: StageCosts
    ratings: Ratings


class Extent(NamedTuple):
    """Numbers of samples, or bundles, of the windows of a mode. Shape (n_rows,).

    Attributes:
        largest: Largest of the windows of 1, 2, 4, ... samples, or of the most, that fits; 0 if
            none does.
        most: Number of samples up to which windows are looked up, at least as large as any window
            that is used.
    """

    largest: IntArray
    most: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class WindowLookup:
    """Look-up of windows of ordered samples in one layout.

    More samples never need less memory, except for noise. So that it does not matter where noise
    occurs, a rule decides which windows are used: those that fit, but beyond `Extent.largest` only
    up to the first that does not.

    Attributes:
        windows: The windows, and the shapes of their micro-batches.
        first: Bundles with which windows begin, ascending, shape (n_rows,).
        room_bytes: Memory that a window alone may use, shape (n_stages,).
    """

    windows: LayoutWindows
    first: IntArray
    cost: CostModel
    room_bytes: FloatArray

    @property
    def room_of_kinds(self) -> FloatArray:
        """Least room of the stages of every kind, see `StageCosts`, shape (n_kinds,)."""
        kinds = self.cost.kind_of_stage
        if kinds is None:
            return self.room_bytes
        room_bytes = np.full(kinds.max() + 1, np.inf)
        np.minimum.at(room_bytes, kinds, self.room_bytes)
        return room_bytes

    def rated(self, shapes: Shapes, recompute: Recompute) -> Rated:
        """Costs and ratings of shapes in a mode."""
        return self._rated(shapes, self.cost.stage_costs(shapes, recompute))

    def rated_windows(self, extents: Sequence[Extent]) -> tuple[Cells, Rated]:
        """All windows that are used, given one extent per mode.

        Returns:
            Indices of windows of 1 to `Extent.most` samples in the rated micro-batches, mode by
            mode and row by row, -1 for windows that are not used; and the rated micro-batches.
        """
        results = [self.windows.shapes_of_rows(self.first, extent.most) for extent in extents]
        of_modes = [each.shapes for each in results]
        shapes = Shapes(*map(np.concatenate, zip(*of_modes, strict=True)))
        rated = self._rated(shapes, self._costs(of_modes))
        fits, n_before = np.isfinite(rated.ratings.memory_share), 0
        cells_of_modes = [each.cells for each in results]
        for of_mode, sizes, extent in zip(cells_of_modes, of_modes, extents, strict=True):
            n_shapes = len(sizes.n_rows)
            own_fit = fits[n_before : n_before + n_shapes]
            _kernels.use_windows(of_mode, extent.most, own_fit, extent.largest, n_before)
            n_before += n_shapes
        cells = np.concatenate(cells_of_modes)
        most = np.concatenate([extent.most for extent in extents])
        alone = cells[(np.cumsum(most) - most)[most > 0]]
        rated.ratings.memory_share[alone[alone >= 0]] = 0
        return cells, rated

    def _costs(self, shapes: Sequence[Shapes]) -> StageCosts:
        """Costs of all modes in one table, as large tables are slow to copy."""
        ends = np.cumsum([0, *(len(sizes.n_rows) for sizes in shapes)])
        table = np.empty((ends[-1], len(self.room_of_kinds), len(Cost)))
        for recompute, sizes, start, end in zip(
            self.cost.recompute_modes, shapes, ends[:-1], ends[1:], strict=True
        ):
            self.cost.stage_costs(sizes, recompute, out=table[start:end])
        return StageCosts(table, self.cost.kind_of_stage)

    def _rated(self, shapes: Shapes, costs: StageCosts) -> Rated:
        results = _kernels.rate_costs(costs.checked, self.room_bytes)
        return Rated(shapes, costs, Ratings(results.work_ms, results.fill_ms, results.memory_share))
