"""Neighbouring samples of large batches that stay together.

See docs/decisions/0028-large-batches-are-planned-in-bundles.md.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import IntArray

FEWEST_SAMPLES = 2048
"""Of a batch that is bundled; plans of smaller ones take little time."""
FEWEST_PER_REPLICA = 512
"""Likewise, for each replica."""
BUNDLES_PER_REPLICA = 256
"""As many, of equal size, would be all that a replica has to do."""
BUNDLES_PER_LONGEST = 3
"""As many, of equal size, would be as long as the longest sample."""


def bundles(lengths: RowLengths, n_replicas: int) -> IntArray:
    """Where bundles of neighbouring samples begin, and the end.

    A bundle has 1, 2, 4, ... samples: as many as have no more padded tokens together than a third
    of the longest sample and a small share of what a replica has to do. So it takes little memory
    and little time, and every replica has many.

    Args:
        lengths: Of the samples in their order.
        n_replicas: Replicas that share the work.

    Returns:
        Ascending from 0 to the number of samples, shape (n_bundles + 1,).
    """
    n_samples = len(lengths.row_tokens)
    if n_samples < max(FEWEST_SAMPLES, FEWEST_PER_REPLICA * n_replicas):
        return np.arange(n_samples + 1)
    tokens = lengths.row_tokens + lengths.target_tokens
    most = min(tokens.max() / BUNDLES_PER_LONGEST, tokens.sum() / BUNDLES_PER_REPLICA / n_replicas)
    return np.fromiter(_begins(_sizes(lengths, float(most)).tolist()), np.int64)


def _sizes(lengths: RowLengths, most_tokens: float) -> IntArray:
    """Of the bundle that would begin with each sample."""
    sizes = np.ones_like(lengths.row_tokens)
    row_tokens, target_tokens = lengths
    size = 1
    while len(row_tokens) > size:
        row_tokens = np.maximum(row_tokens[:-size], row_tokens[size:])
        target_tokens = np.maximum(target_tokens[:-size], target_tokens[size:])
        size *= 2
        sizes[: len(row_tokens)][size * (row_tokens + target_tokens) <= most_tokens] = size
    return sizes


def _begins(sizes: Sequence[int]) -> Iterator[int]:
    begin = 0
    while begin < len(sizes):
        yield begin
        begin += sizes[begin]
    yield begin
