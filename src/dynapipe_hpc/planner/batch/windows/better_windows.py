"""Windows of one table that are better than those of another."""

from dataclasses import replace

import numpy as np

from dynapipe_hpc.planner.batch.windows.window_table import WindowTable

MARGIN = 0.01
"""Fraction of time or memory by which a window must be better."""
FEWEST = 0.05
"""Fraction of the windows below which better ones are taken for noise in measurements."""


def better_windows(table: WindowTable, other: WindowTable) -> WindowTable | None:
    """The windows of a table that take less time or memory than those of another, if not few.

    A search finds better plans if it does not have to choose between windows that are as good.

    Args:
        table: Windows in some modes of recomputation.
        other: Windows of the same bundles in the same modes, in another layout.
    """
    n_bundles = len(table.row_of_sample)
    begin, end = np.moveaxis(table.spans[:, table.row_of_sample], 2, 0)
    other_begin, other_end = np.moveaxis(other.spans[:, other.row_of_sample], 2, 0)
    size = np.minimum(end - begin, other_end - other_begin)
    ends = np.cumsum(size).reshape(size.shape)
    place = np.arange(ends[-1, -1]) - np.repeat(ends - size, size.ravel())
    cells = table.cells[np.repeat(begin, size.ravel()) + place]
    others = other.cells[np.repeat(other_begin, size.ravel()) + place]
    is_better = (cells >= 0) & (others < 0)
    for rating, of_other in zip(table.ratings, other.ratings, strict=True):
        is_better |= (cells >= 0) & (rating[cells] < (1 - MARGIN) * of_other[others])
    if is_better.mean() < FEWEST:
        return None
    return replace(
        table,
        row_of_sample=np.arange(n_bundles, dtype=np.int32),
        cells=np.where(is_better, cells, -1).astype(np.int32),
        spans=np.stack([ends - size, ends], axis=2),
    )
