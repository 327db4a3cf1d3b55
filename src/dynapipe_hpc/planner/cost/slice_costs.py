"""Costs of slices of samples, from measurements of complete rows."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.interpolate import Interpolator

PAIR_COLUMNS = [Cost.FORWARD_MS, Cost.BACKWARD_MS]
"""Costs that grow with pairs of tokens; weights and what fused attention keeps do not."""


class PairTimes(NamedTuple):
    """Times per pair of a token of a slice and one before the slice, each of shape (n_kinds, 2)."""

    pair_ms: FloatArray  # time in layers in which tokens see all before them
    near_pair_ms: FloatArray  # time in layers with a window, of the pairs within it
    window: float


def costs_of_slices(
    costs: Interpolator, shapes: Shapes, times: PairTimes, out: FloatArray | None = None
) -> StageCosts:
    """Costs of micro-batches; those with a slice have `n_rows` below 1.

    A slice of T tokens costs as much as a row of T tokens, plus the time of its extra pairs.
    """
    n_rows, row_tokens = (np.asarray(sizes, np.float64) for sizes in shapes[:2])
    is_slice = n_rows < 1
    tokens = n_rows * row_tokens
    alone = Shapes.padded(
        np.where(is_slice, 1.0, n_rows),
        np.where(is_slice, tokens, row_tokens),
        shapes.target_tokens,
    )
    whole = costs(alone, out)
    before = np.where(is_slice, (row_tokens - tokens) / 2, 0.0)
    pairs, near = tokens * before, near_pairs(tokens, before, times.window)
    more_ms = pairs[:, None, None] * times.pair_ms + near[:, None, None] * times.near_pair_ms
    whole.of_kinds[..., PAIR_COLUMNS] += more_ms
    return whole


def near_pairs(tokens: FloatArray, before: FloatArray, window: float) -> FloatArray:
    """Pairs of a slice's token and a token before the slice that it sees through a window.

    `before`: Tokens before slices, of the same shape. `window`: Number of tokens that a token sees,
    itself included; may be infinite.
    """
    if np.isinf(window):
        return tokens * before
    # Token i of a slice sees window - 1 - i tokens before it, if there are that many.
    n_seeing = np.minimum(tokens, window - 1)
    n_all = np.clip(window - before, 0, n_seeing)  # tokens that see all
    total: FloatArray = n_all * before + (n_seeing - n_all) * (window - 1)
    total -= (n_seeing * (n_seeing - 1) - n_all * (n_all - 1)) / 2
    return total


def pair_ms_of_rows(costs: Interpolator) -> FloatArray:
    """Time per pair of tokens where slices were not measured, shape (n_kinds, 2).

    Forward and backward times of the longest row that was measured, less the times of shorter rows
    with the same number of tokens in total: the two differ in pairs only.
    """
    n_rows, lengths, _ = costs.axes
    n_most = float(n_rows[-1])
    for length in lengths[::-1].tolist():
        n = float(min(n_most, length / lengths[0]))
        if n < 2:
            break
        shapes = Shapes.padded(np.array([1.0, n]), np.array([length, length / n]), np.zeros(2))
        one, several = costs(shapes).of_kinds[..., PAIR_COLUMNS]
        if np.isfinite(one).all() and np.isfinite(several).all():
            more_ms: FloatArray = np.maximum(one - several, 0.0)
            # A token of a row attends to half of the row on average.
            of_pairs: FloatArray = 2 * more_ms / (length**2 * (1 - 1 / n))
            return of_pairs
    return np.full((costs.points.shape[3], len(PAIR_COLUMNS)), np.inf)
