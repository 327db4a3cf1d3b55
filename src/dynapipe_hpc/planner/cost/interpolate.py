"""Multilinear interpolation of many micro-batch shapes at once."""

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray

# Stands for infinity, which a weight of zero would turn into NaN.
INFEASIBLE = 1e300
FEASIBLE_LIMIT = 1e200


class Interpolator:
    """Values between the points of a grid over rows and tokens per row.

    Below the smallest point its value holds; beyond the largest, and wherever an infeasible
    point has a weight, the value is infinite.

    Args:
        rows: Ascending, shape (n_rows,).
        row_tokens: Ascending, shape (n_lengths,).
        values: Shape (n_quantities, n_rows, n_lengths, n_stages); infinite where infeasible.
    """

    def __init__(self, rows: IntArray, row_tokens: IntArray, values: FloatArray) -> None:
        self._rows = np.append(rows, 2 * rows[-1])
        self._row_tokens = np.append(row_tokens, 2 * row_tokens[-1])
        beyond = ((0, 0), (0, 1), (0, 1), (0, 0))
        finite = np.minimum(values, INFEASIBLE)
        self._values = np.pad(finite, beyond, constant_values=INFEASIBLE)

    def __call__(self, n_rows: IntArray, row_tokens: IntArray) -> FloatArray:
        """Values at points (n_rows[i], row_tokens[i]).

        Returns:
            Array of shape (n_quantities, n_points, n_stages).
        """
        lengths, at_length = _distinct(row_tokens, self._row_tokens[-1])
        by_length = self._at_lengths(lengths)
        rows, at_row = _distinct(n_rows, self._rows[-1])
        row, weight = _locate(self._rows, rows)
        low = row[at_row] * len(lengths) + at_length
        upper_share = weight[at_row, np.newaxis]
        result = np.empty((len(by_length), len(n_rows), by_length.shape[-1]))
        for values, out in zip(by_length, result, strict=True):
            _blend(values, low, low + len(lengths), upper_share, out)
        return result

    def _at_lengths(self, lengths: IntArray) -> FloatArray:
        """Shape (n_quantities, n_rows * n_lengths, n_stages)."""
        left, weight = _locate(self._row_tokens, lengths)
        low, high = self._values[:, :, left], self._values[:, :, left + 1]
        between: FloatArray = low + weight[:, np.newaxis] * (high - low)
        n_quantities, n_rows, n_lengths, n_stages = between.shape
        return between.reshape(n_quantities, n_rows * n_lengths, n_stages)


def _distinct(values: IntArray, limit: int) -> tuple[IntArray, IntArray]:
    """Distinct values, at most `limit` each, and where among them every value is.

    A table instead of a sort: there are many values, but none is large.
    """
    clipped = np.minimum(values, limit)
    occurs = np.zeros(limit + 1, dtype=bool)
    occurs[clipped] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[clipped]


def _locate(axis: IntArray, values: IntArray) -> tuple[IntArray, FloatArray]:
    """Index of the interval that holds each value, and how far into it the value is."""
    inside = np.clip(values, axis[0], axis[-1])
    left = np.clip(np.searchsorted(axis, inside, side="right") - 1, 0, len(axis) - 2)
    return left, (inside - axis[left]) / (axis[left + 1] - axis[left])


def _blend(
    values: FloatArray, low: IntArray, high: IntArray, weight: FloatArray, out: FloatArray
) -> None:
    # In place, and clipped, which lets `take` write without a copy: this is the planner's
    # innermost question.
    values.take(low, axis=0, out=out, mode="clip")
    step = values.take(high, axis=0, mode="clip")
    step -= out
    step *= weight
    out += step
    np.putmask(out, out > FEASIBLE_LIMIT, np.inf)
