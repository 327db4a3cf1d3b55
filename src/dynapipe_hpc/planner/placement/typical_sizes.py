"""The micro-batches that a model is placed for."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes

# Plans are of so many micro-batches per stage, more or less: fewer leave stages idle.
MICROBATCHES_PER_STAGE = 4


class TypicalSizes(NamedTuple):
    """Micro-batches, one each.

    Attributes:
        common: Rows of common length, as many as are to be expected.
        longest: The longest rows, one of each side.
    """

    common: Shapes
    longest: Shapes


def typical_sizes(lengths: RowLengths, tokens_per_batch: int, cluster: Cluster) -> TypicalSizes:
    """What micro-batches of some samples look like before any is planned.

    A row of common length is one that half of all tokens are in rows of at most this length.
    Rows share a batch's tokens evenly over `MICROBATCHES_PER_STAGE` micro-batches for every
    stage of every replica.

    Args:
        lengths: The rows of all samples, at least one.
        tokens_per_batch: Of an iteration.
        cluster: The replicas and stages.
    """
    common = [_of_half_the_tokens(side) for side in lengths]
    share = tokens_per_batch / (MICROBATCHES_PER_STAGE * cluster.n_stages * cluster.n_replicas)
    n_rows = max(1, int(share / sum(common)))
    return TypicalSizes(_one(n_rows, *common), _one(1, *(int(side.max()) for side in lengths)))


def _of_half_the_tokens(tokens: IntArray) -> int:
    ascending = np.sort(tokens)
    up_to = np.cumsum(ascending)
    return int(ascending[np.searchsorted(up_to, up_to[-1] / 2)])


def _one(*sizes: int) -> Shapes:
    return Shapes(*(np.array([size]) for size in sizes))
