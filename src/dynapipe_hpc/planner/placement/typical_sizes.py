"""Typical micro-batches, which a model is placed for."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes

MICROBATCHES_PER_STAGE = (4, 1)
"""Numbers of micro-batches per stage that are to be expected, the most common first.

Fewer would leave stages idle. There are as few as one where a GPU waits for launches, so that large
micro-batches take hardly longer than small ones, except in the head.
"""


class TypicalSizes(NamedTuple):
    """A common and a large micro-batch."""

    common: Shapes
    longest: Shapes


def typical_sizes(
    lengths: RowLengths, tokens_per_batch: int, cluster: Cluster
) -> list[TypicalSizes]:
    """Sizes of micro-batches that are to be expected, before any iteration is planned.

    The common length is such that half of all tokens are in rows of at most this length. A common
    micro-batch has an equal share of a global batch: there are so many of `MICROBATCHES_PER_STAGE`
    for every stage of every replica.

    `lengths`: Row lengths of all samples, at least one.
    """
    common = [_of_half_the_tokens(side) for side in lengths]
    longest = _one(1, *(int(side.max()) for side in lengths))
    shares = (tokens_per_batch / (n * cluster.n_plans) for n in MICROBATCHES_PER_STAGE)
    rows = (max(1, int(share / sum(common))) for share in shares)
    return [TypicalSizes(_one(n_rows, *common), longest) for n_rows in rows]


def _of_half_the_tokens(tokens: IntArray) -> int:
    ascending = np.sort(tokens)
    up_to = np.cumsum(ascending)
    return int(ascending[np.searchsorted(up_to, up_to[-1] / 2)])


def _one(*sizes: int) -> Shapes:
    return Shapes.padded(*(np.array([size]) for size in sizes))
