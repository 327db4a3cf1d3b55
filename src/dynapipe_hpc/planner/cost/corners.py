"""Corners of a grid beyond the largest measured micro-batches."""

from itertools import combinations

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray
from dynapipe_hpc.planner.cost.measured_axes import Axes


def tokens_of_points(axes: Axes) -> IntArray:
    """Tokens of the micro-batches at the points of a grid, on both sides together."""
    rows, row_tokens, target_tokens = axes
    tokens: IntArray = rows[:, None, None] * (row_tokens[:, None] + target_tokens)
    return tokens


def most_tokens(axes: Axes, points: FloatArray) -> FloatArray:
    """Tokens of the largest feasible point of every kind of stage, shape (n_kinds,).

    `axes`: Numbers of rows, tokens per row and target tokens, each ascending. `points`: Costs,
    infinite where infeasible, shape (n_rows, n_lengths, n_target_lengths, n_kinds, len(Cost)).
    """
    feasible = np.isfinite(points).all(axis=-1)
    most: FloatArray = np.where(feasible, tokens_of_points(axes)[..., None], 0.0).max(
        axis=(0, 1, 2)
    )
    return most


def with_corners(axes: Axes, points: FloatArray) -> FloatArray:
    """Adds the corners of cells that only `most_tokens` keeps from being measured.

    Micro-batches of that many tokens lie on a curve through the cells of the grid, and each cell on
    it has a corner beyond, if rows and lengths double. The corner is the product of the two beside
    it over the one opposite: exact where costs are a product of rows and a function of lengths, or
    constant. Without it, micro-batches of more than half as many tokens could often not be planned.
    It serves interpolation alone, as the micro-batch in the corner is too large.

    Returns the points with costs in these corners. A point that is infeasible though it has no more
    tokens than the largest feasible one, as memory ran out there, remains infeasible.
    """
    is_beyond = tokens_of_points(axes)[..., None] > most_tokens(axes, points)
    points = points.copy()
    long_axes = [place for place, axis in enumerate(axes) if len(axis) > 1]
    for _ in long_axes[1:]:  # the corner beyond on all axes comes last
        known = np.isfinite(points).all(axis=-1)
        corners = np.full_like(points, -np.inf)
        for pair in combinations(long_axes, 2):
            one, other, both = (
                _moved(points, axes_moved) for axes_moved in (pair[:1], pair[1:], pair)
            )
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                product = np.where(both > 0, one * other / both, one + other)
            corners = np.fmax(corners, np.where(np.isfinite(product), product, -np.inf))
        added = is_beyond & ~known & np.isfinite(corners).all(axis=-1)
        points[added] = corners[added]
    return points


def _moved(points: FloatArray, places: tuple[int, ...]) -> FloatArray:
    """The points one step before on some axes; infinite before the first."""
    moved = np.roll(points, [1] * len(places), places)
    for place in places:
        np.moveaxis(moved, place, 0)[0] = np.inf
    return moved
