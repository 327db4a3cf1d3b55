"""Points between measured lengths of rows, where costs are curved."""

import numpy as np

from dynapipe_hpc.planner.cost.corners import with_corners
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, IntArray
from dynapipe_hpc.planner.cost.measured_axes import ROW_TOKENS, TARGET_TOKENS, Axes


def with_finer_lengths(axes: Axes, points: FloatArray) -> tuple[Axes, FloatArray]:
    """Adds the middle between neighbouring lengths of rows, and corners (`with_corners`).

    Attention grows with the square of a row's tokens. Between lengths that double, a straight line
    is up to 11 % above a square, and above the parabola through three measured lengths up to 3 %
    once the middle is on it. Costs grow linearly with rows.

    Args:
        axes: Numbers of rows, tokens per row and target tokens, each ascending.
        points: Costs at the points of the axes, infinite where infeasible, shape
            (n_rows, n_lengths, n_target_lengths, n_stages, len(Cost)).

    Returns:
        Axes and points with more lengths. A point between feasible ones is feasible, more rows or
        longer rows never cost less, `weight_ms` stays within `backward_ms` if it did so before, and
        that and `splitting_ms` may fall as they did.
    """
    rows, row_tokens, target_tokens = axes
    lengths = row_tokens, target_tokens
    with np.errstate(invalid="ignore"):
        points = points.copy()
        points[..., Cost.BACKWARD_MS] -= points[..., Cost.WEIGHT_MS]
        points = with_corners(axes, points)
        for place, axis in zip((ROW_TOKENS, TARGET_TOKENS), lengths, strict=True):
            points = np.moveaxis(_with_middles(axis, np.moveaxis(points, place, 0)), 0, place)
        points[..., Cost.BACKWARD_MS] += points[..., Cost.WEIGHT_MS]
    points = np.where(np.isnan(points), np.inf, points)
    parts = [Cost.WEIGHT_MS, Cost.SPLITTING_MS]
    parts_ms = points[..., parts]
    for place in range(len(axes)):
        points = np.maximum.accumulate(points, axis=place)
    points[..., parts] = parts_ms
    finer = rows, _with_middle_lengths(row_tokens), _with_middle_lengths(target_tokens)
    return finer, np.ascontiguousarray(points)


def _with_middle_lengths(axis: IntArray) -> IntArray:
    return np.unique(np.concatenate([axis, (axis[1:] + axis[:-1]) // 2]))


def _with_middles(axis: IntArray, grid: FloatArray) -> FloatArray:
    """The grid at the lengths of `_with_middle_lengths`, which are its first axis."""
    middles = (axis[1:] + axis[:-1]) // 2
    between = [_middle(axis, grid, i, int(x)) for i, x in enumerate(middles)]
    _, order = np.unique(np.concatenate([axis, middles]), return_index=True)
    both: FloatArray = np.stack([*grid, *between])[order]
    return both


def _middle(axis: IntArray, grid: FloatArray, i: int, x: int) -> FloatArray:
    """Costs between the lengths i and i + 1: on a parabola, but within those of the two."""
    left, right = grid[i], grid[i + 1]
    slope = (right - left) / (axis[i + 1] - axis[i])
    line: FloatArray = left + (x - axis[i]) * slope
    if len(axis) < 3:
        return line
    third = i - 1 if i > 0 else 2
    slope_to_third = (grid[third] - left) / (axis[third] - axis[i])
    curvature = (slope - slope_to_third) / (axis[i + 1] - axis[third])
    parabola = line + curvature * (x - axis[i]) * (x - axis[i + 1])
    bounded = np.clip(parabola, np.fmin(left, right), np.fmax(left, right))
    middle: FloatArray = np.where(np.isfinite(parabola), bounded, line)
    return middle
