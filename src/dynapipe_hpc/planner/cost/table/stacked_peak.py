"""One layer's transient memory, from the peak of a stack of layers."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray

DEPTHS = np.array([3, 2, 1])
TOLERANCE = 0.95  # of rounding and of fixed parts


def transient_of_stack(
    axes: Sequence[IntArray], stored: FloatArray, peak: FloatArray
) -> FloatArray:
    """Transient memory of a layer: beyond what it keeps, while its forward pass runs.

    A stack of n layers peaks at n x stored + transient. It was of three layers, and of fewer
    where three did not fit, without a note of how many. What a layer needs grows at least
    with the number of tokens, so the deepest stack is taken that leaves at least as much per
    token as the neighbours with fewer rows and with shorter rows need. The tokens of a T5's
    decoder are those of its targets, and longer inputs never make it need less.

    Args:
        axes: Ascending sizes of micro-batches, all >= 1: rows first, tokens of a row last.
        stored: Bytes kept by one layer, one dimension per axis; NaN where not measured.
        peak: Peak of the stack, same shape.

    Returns:
        Array of the same shape; NaN where not measured.
    """
    n_rows, *lengths = np.meshgrid(*axes, indexing="ij")
    tokens: FloatArray = np.prod([n_rows, *lengths[-1:]], axis=0, dtype=np.float64)
    per_token = np.full_like(stored, np.nan)
    for point in np.argwhere(np.isfinite(peak)):
        at = tuple(point)
        smaller = [tuple(p) for p in point - np.eye(len(point), dtype=int) if p.min() >= 0]
        least = np.nanmax([0.0, *(TOLERANCE * per_token[p] for p in smaller)])
        by_depth = (peak[at] - DEPTHS * stored[at]) / tokens[at]
        per_token[at] = next((left for left in by_depth if left >= least), least)
    return per_token * tokens
