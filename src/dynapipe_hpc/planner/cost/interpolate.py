"""Multilinear interpolation of many micro-batch shapes at once."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import (
    N_COSTS,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)


@dataclass(frozen=True, slots=True, eq=False)
class Interpolator:
    """Costs between the points of a grid over rows, tokens per row and target tokens.

    Below the smallest point its costs hold; beyond the largest, and wherever an infeasible
    point has a weight, they are infinite.

    Attributes:
        axes: Ascending, one per size.
        points: Shape (n_rows, n_lengths, n_target_lengths, n_kinds, 7), costs of the kinds of
            stages there are, see `StageCosts`, without boundaries; infinite where infeasible.
        kind_of_stage: Shape (n_stages,), which of the kinds each stage is.
        boundary_bytes_per_token: Shape (n_stages, 2), handed over per token and target token.
    """

    axes: tuple[IntArray, IntArray, IntArray]
    points: FloatArray
    kind_of_stage: npt.NDArray[np.int32]
    boundary_bytes_per_token: FloatArray

    def monotone(self) -> "Interpolator":
        """The largest costs below these that no larger micro-batch has less of.

        Gradients of weights and the rest of the backward pass are two costs.
        """
        points = self.points.copy()
        backward, weight = points[..., 1], points[..., 2]
        np.subtract(backward, weight, out=backward, where=np.isfinite(backward))
        for axis in range(3):
            points = np.flip(np.minimum.accumulate(np.flip(points, axis), axis), axis)
        points[..., 1] += points[..., 2]
        return replace(self, points=np.ascontiguousarray(points))

    def __call__(self, shapes: Shapes, out: FloatArray | None = None) -> StageCosts:
        """Costs of micro-batches, in `out` or a new table."""
        rows, row_tokens, target_tokens = self.axes
        size = (len(shapes.n_rows), len(self.kind_of_stage), N_COSTS)
        table = np.empty(size) if out is None else out
        _kernels.interpolate_costs(
            rows,
            row_tokens,
            target_tokens,
            self.points,
            self.kind_of_stage,
            self.boundary_bytes_per_token,
            np.ascontiguousarray(shapes.n_rows),
            np.ascontiguousarray(shapes.row_tokens),
            np.ascontiguousarray(shapes.target_tokens),
            table,
        )
        return StageCosts(table)
