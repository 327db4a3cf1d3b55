"""Repair of measurements that noise has made decrease where they can only grow."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray


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
