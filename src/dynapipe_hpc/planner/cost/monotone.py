"""Repairs what noise did to measurements that can only grow."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray


class Repaired(NamedTuple):
    """Monotone measurements.

    Attributes:
        grid: Infinite where infeasible.
        n_changed: Feasible points whose value was changed by more than 0.1 %.
    """

    grid: FloatArray
    n_changed: int


def make_monotone(measured: FloatArray) -> Repaired:
    """The measurements, nowhere decreasing along any axis.

    Halfway between the smallest monotone function above the measurements and the largest
    below, so that single outliers count half in either direction. A point is infeasible if
    it is NaN or if a smaller micro-batch is.
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


def as_measured(measured: FloatArray) -> Repaired:
    """The measurements with all their noise; infinite where NaN."""
    return Repaired(np.where(np.isnan(measured), np.inf, measured), 0)
