"""What windows of neighbouring samples cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)

Cells = npt.NDArray[np.int32]


class Ratings(NamedTuple):
    """By what micro-batches are compared before they are scheduled. Shape (n_microbatches,).

    Attributes:
        work_ms: Forward and backward on its slowest stage.
        fill_ms: Forward and backward on all its other stages.
        memory_share: The most that it keeps of the memory that the model leaves on a stage; 0
            for one sample alone, infinite if it cannot run.
    """

    work_ms: FloatArray
    fill_ms: FloatArray
    memory_share: FloatArray


class Rated(NamedTuple):
    """Micro-batches that were looked up; as many of each."""

    shapes: Shapes
    costs: StageCosts
    ratings: Ratings

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The micro-batches of all parts, one part behind the other."""
        return cls(
            Shapes(*map(np.concatenate, zip(*(part.shapes for part in parts), strict=True))),
            StageCosts.joined([part.costs for part in parts]),
            Ratings(*map(np.concatenate, zip(*(part.ratings for part in parts), strict=True))),
        )


class Windows(NamedTuple):
    """The windows of a mode.

    Attributes:
        cells: Shape (n_rows, max_samples), which of `rated` a window is; -1 if it cannot run.
        rated: What was looked up.
    """

    cells: Cells
    rated: Rated


class Doubling(NamedTuple):
    """Windows of 1, 2, 4, ... samples.

    Attributes:
        shapes: Of all of them, those of one sample first.
        row: As many, the row of the tables.
        n_left: Per row, samples from its first one on.
    """

    shapes: Shapes
    row: IntArray
    n_left: IntArray

    def most(self, ratings: Ratings) -> IntArray:
        """Per row, how many samples a window can have that fits.

        More samples never need less memory, but for noise, so the most that fit lie between
        two powers of two.
        """
        largest = np.zeros_like(self.n_left)
        fitting = np.isfinite(ratings.memory_share)
        np.maximum.at(largest, self.row[fitting], self.shapes.n_rows[fitting])
        return np.clip(2 * largest - 1, 0, self.n_left)


@dataclass(frozen=True, slots=True, eq=False)
class WindowLookup:
    """Looks up windows of ordered samples.

    Attributes:
        lengths: Of the samples.
        first: Shape (n_rows,), the samples with which windows begin, ascending.
        cost: Predicts time and memory.
        room_bytes: Shape (n_stages,), memory that a window alone may use.
    """

    lengths: RowLengths
    first: IntArray
    cost: CostModel
    room_bytes: FloatArray

    def doubling(self) -> Doubling:
        """Windows of 1, 2, 4, ... samples, as far as there are samples."""
        n_left, rows = len(self.lengths.row_tokens) - self.first, np.arange(len(self.first))
        longest, size, parts = self.lengths, 1, []
        while np.any(inside := n_left >= size):
            longest_of_rows = (side[self.first[inside]] for side in longest)
            parts.append((rows[inside], np.full(inside.sum(), size), *longest_of_rows))
            longest = RowLengths(*(np.maximum(side[:-size], side[size:]) for side in longest))
            size *= 2
        row, *shapes = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Doubling(Shapes(*shapes), row, n_left)

    def windows(self, most: IntArray, mode: Recompute) -> Windows:
        """All windows of 1 to `most` samples per row; whether they fit is seen one by one."""
        cells, *shapes = _kernels.window_shapes(*self.lengths, self.first, most)
        rated = self.rated(Shapes(*shapes), mode)
        fits = np.append(np.isfinite(rated.ratings.memory_share), False)
        return Windows(np.where(fits[cells], cells, -1), rated)

    def rated(self, shapes: Shapes, mode: Recompute) -> Rated:
        """Looks shapes up."""
        costs = self.cost.stage_costs(shapes, mode)
        ratings = Ratings(*_kernels.rate_costs(costs.table, self.room_bytes))
        alone = (shapes.n_rows == 1) & np.isfinite(ratings.memory_share)
        ratings.memory_share[alone] = 0
        return Rated(shapes, costs, ratings)
