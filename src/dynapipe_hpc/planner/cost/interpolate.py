"""Multilinear interpolation of many micro-batch shapes at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, Shapes, StageCosts


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

    def __call__(self, shapes: Shapes) -> StageCosts:
        """Costs of micro-batches."""
        rows, row_tokens, target_tokens = self.axes
        table = _kernels.interpolate_costs(
            rows,
            row_tokens,
            target_tokens,
            self.points,
            self.kind_of_stage,
            self.boundary_bytes_per_token,
            *map(np.ascontiguousarray, shapes),
        )
        return StageCosts(table)
