"""Costs of slices of samples, from measurements of whole rows."""

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.interpolate import Interpolator

PAIR_TIMES = [Cost.FORWARD_MS, Cost.BACKWARD_MS]
"""Costs that grow with pairs of tokens; weights and what fused attention keeps do not."""


def costs_of_slices(
    costs: Interpolator, shapes: Shapes, pair_ms: FloatArray, out: FloatArray | None = None
) -> StageCosts:
    """Costs of micro-batches of which some hold slices, which have less than one row.

    A slice of T tokens takes what a row of T tokens does, and the time of the pairs that it has
    more.

    Args:
        costs: Costs of whole rows of a decoder-only model.
        shapes: Sizes of the micro-batches.
        pair_ms: Time per pair of a token and one before its slice, shape (n_kinds, 2).
        out: Table to write the costs to.
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
    more_pairs = np.where(is_slice, tokens * (row_tokens - tokens) / 2, 0.0)
    whole.of_kinds[..., PAIR_TIMES] += more_pairs[:, None, None] * pair_ms
    return whole


def pair_ms_of_rows(costs: Interpolator) -> FloatArray:
    """Time per pair of tokens where slices were not measured, shape (n_kinds, 2).

    Forward and backward times of the longest row that was measured, less those of shorter rows that
    have as many tokens together: they differ in pairs only.
    """
    n_rows, lengths, _ = costs.axes
    n_most = float(n_rows[-1])
    for length in lengths[::-1].tolist():
        n = float(min(n_most, length / lengths[0]))
        if n < 2:
            break
        shapes = Shapes.padded(np.array([1.0, n]), np.array([length, length / n]), np.zeros(2))
        one, several = costs(shapes).of_kinds[..., PAIR_TIMES]
        if np.isfinite(one).all() and np.isfinite(several).all():
            more_ms: FloatArray = np.maximum(one - several, 0.0)
            # A token of a row attends to half of the row on average.
            of_pairs: FloatArray = 2 * more_ms / (length**2 * (1 - 1 / n))
            return of_pairs
    return np.full((costs.points.shape[3], len(PAIR_TIMES)), np.inf)
