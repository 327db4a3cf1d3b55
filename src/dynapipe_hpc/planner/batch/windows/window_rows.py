"""Rows of the tables of windows, and the samples or bundles that share them."""

import numpy as np

from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import IntArray


def begin_rows(lengths: RowLengths) -> BoolArray:
    """Whether a row begins with each sample.

    A sample needs no row of its own if it is as long as the one before it and none after it is
    longer: then all its windows are like those of the one before.
    """
    alike = np.logical_and.reduce([(side[1:] == side[:-1]) & _is_longest(side) for side in lengths])
    return np.concatenate([[True], ~alike])


def begin_rows_of_bundles(begins: BoolArray, n_samples: IntArray, reach: IntArray) -> BoolArray:
    """Whether a row begins with each bundle, whose windows must also have as many samples.

    Args:
        begins: Whether a row begins by lengths alone, shape (n_bundles,).
        n_samples: Number of samples of every bundle.
        reach: Largest number of bundles of a window, for every row by lengths alone.
    """
    n_bundles = len(n_samples)
    changes = np.append(np.flatnonzero(np.diff(n_samples)) + 1, n_bundles + reach.max())
    next_change = changes[np.searchsorted(changes, np.flatnonzero(begins), side="right")]
    row = np.cumsum(begins) - 1
    return np.asarray(begins | (np.arange(n_bundles) + reach[row] > next_change[row]))


def _is_longest(side: IntArray) -> BoolArray:
    """Whether no later sample is longer, from the second sample on."""
    return np.asarray(np.maximum.accumulate(side[::-1])[::-1][1:] == side[1:])
