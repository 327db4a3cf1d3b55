"""Multilinear interpolation of many shapes at once, and repair of measurements."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    FloatArray,
    IntArray,
    Kinds,
    Shapes,
    StageCosts,
)


class Repaired(NamedTuple):
    """Measurements after the repair."""

    grid: FloatArray  # the measurements, nowhere decreasing; infinite where infeasible
    n_changed: int  # number of feasible points whose value was changed by more than 0.1 %


def make_monotone(measured: FloatArray) -> Repaired:
    """The measurements made nondecreasing along every axis.

    The result is halfway between the smallest monotone function above the measurements and the
    largest below, so single outliers count half in either direction. A point is infeasible if it is
    NaN or if a smaller micro-batch is infeasible.
    """
    known = np.where(np.isnan(measured), np.inf, measured)
    above, below = known, np.flip(known)
    for axis in range(measured.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.minimum.accumulate(below, axis=axis)
    grid = (above + np.flip(below)) / 2
    feasible = np.isfinite(grid)
    changed = ~np.isclose(grid[feasible], known[feasible], rtol=1e-3, atol=0)
    return Repaired(grid, int(changed.sum()))


def unrepaired(measured: FloatArray) -> Repaired:
    """The measurements as they are; infeasible where NaN."""
    return Repaired(np.where(np.isnan(measured), np.inf, measured), 0)


@dataclass(frozen=True, eq=False)
class Interpolator:
    """Costs between the points of a grid over rows, tokens per row and target tokens.

    Below the smallest point the costs are those at that point. Beyond the largest, with more than
    `most_tokens`, and wherever an infeasible point has a nonzero weight, they are infinite.

    `axes`: Ascending sizes: rows, tokens per row and target tokens. `points`: Costs of every kind
    of stage without boundaries, infinite where infeasible, shape (n_rows, n_lengths,
    n_target_lengths, n_kinds, len(Cost)). `most_tokens`: Tokens of the largest micro-batch of every
    kind of stage, on both sides together, shape (n_kinds,). `boundary_bytes_per_token`: Bytes that
    a stage of every kind sends per token and per target token, shape (n_kinds, 2).
    """

    axes: tuple[IntArray, IntArray, IntArray]
    points: FloatArray
    most_tokens: FloatArray
    kind_of_stage: Kinds  # kind of each stage, shape (n_stages,)
    boundary_bytes_per_token: FloatArray

    @cached_property
    def monotone(self) -> "Interpolator":
        """The largest monotone costs that nowhere exceed these.

        Weight gradients and the rest of the backward pass count as two costs.
        """
        points = self.points.copy()
        backward, weight = points[..., Cost.BACKWARD_MS], points[..., Cost.WEIGHT_MS]
        np.subtract(backward, weight, out=backward, where=np.isfinite(backward))
        for axis in range(3):
            points = np.flip(np.minimum.accumulate(np.flip(points, axis), axis), axis)
        points[..., Cost.BACKWARD_MS] += points[..., Cost.WEIGHT_MS]
        return replace(self, points=np.ascontiguousarray(points))

    def __call__(self, shapes: Shapes, out: FloatArray | None = None) -> StageCosts:
        """Costs of micro-batches, in `out` or a new table."""
        rows, row_tokens, target_tokens = self.axes
        sizes = shapes[:3]
        n_rows, lengths, target_lengths = (np.ascontiguousarray(s, np.float64) for s in sizes)
        size = (len(n_rows), self.points.shape[3], len(Cost))
        table = np.empty(size) if out is None else out
        _kernels.interpolate_costs(
            rows,
            row_tokens,
            target_tokens,
            self.points,
            self.most_tokens,
            self.boundary_bytes_per_token,
            n_rows,
            lengths,
            target_lengths,
            table,
        )
        return StageCosts(table, self.kind_of_stage)


@dataclass(frozen=True, eq=False)
class PairedCosts:
    """Costs of packed micro-batches of pairs, whose two sides count as different rows."""

    inputs: Interpolator
    targets: Interpolator

    @cached_property
    def monotone(self) -> "PairedCosts":
        """The largest monotone costs of either side that nowhere exceed these."""
        return PairedCosts(self.inputs.monotone, self.targets.monotone)

    def __call__(self, shapes: Shapes, out: FloatArray | None = None) -> StageCosts:
        """Costs of micro-batches, in `out` or a new table."""
        nothing = np.zeros_like(shapes.input_rows)
        rows_of_inputs = Shapes.padded(shapes.input_rows, shapes.input_row_tokens, nothing)
        places = self.targets(shapes, out)
        _kernels.add_costs(places.of_kinds, self.inputs(rows_of_inputs).of_kinds)
        return places
