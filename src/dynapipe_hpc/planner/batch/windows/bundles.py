"""Neighbouring samples of large batches that stay together.

See docs/decisions/0028-large-batches-are-planned-in-bundles.md.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import IntArray

FEWEST_SAMPLES = 2048
"""Least number of samples of a batch that is bundled; smaller batches take little time to plan."""
FEWEST_PER_REPLICA = 512
"""Least number of samples for each replica of such a batch."""
PACKED_SHARE = 32
"""Fraction of these from which on samples are bundled if they may be packed: unlike padded windows,
of which many are alike, all packed ones have costs of their own."""
BUNDLES_PER_REPLICA = 256
"""Least number of bundles for each replica, if all bundles had the same number of tokens; half as
many if they may be packed."""
BUNDLES_PER_LONGEST = 3
"""Least number of bundles with as many tokens as the longest sample."""
MANY_BUNDLES = 512
"""Number of bundles from which on that does not count: all samples may be short."""


def bundles(
    lengths: RowLengths, n_replicas: int, layouts: Collection[Layout] = (Layout.PADDED,)
) -> IntArray:
    """Beginnings of bundles of neighbouring samples, and the end of the last bundle.

    A bundle has 1, 2, 4, ... samples: as many as together have no more tokens, padded unless all
    samples are packed, than a third of the longest sample, or a 512th of all, and a small fraction
    of the work of a replica. It therefore takes little memory and little time, and every replica
    has many.

    `lengths`: Row lengths of the samples in their order. Returns indices of samples, ascending from
    0 to the number of samples, shape (n_bundles + 1,).
    """
    n_samples, may_pack = len(lengths.row_tokens), Layout.PACKED in layouts
    fewest = max(FEWEST_SAMPLES, FEWEST_PER_REPLICA * n_replicas)
    if n_samples < (fewest // PACKED_SHARE if may_pack else fewest):
        return np.arange(n_samples + 1)
    tokens = lengths.row_tokens + lengths.target_tokens
    total = tokens.sum()
    most = max(tokens.max() / BUNDLES_PER_LONGEST, total / MANY_BUNDLES)
    most = min(most, total / BUNDLES_PER_REPLICA / n_replicas * (1 + may_pack))
    sizes = _sizes(lengths, float(most), is_padded=Layout.PADDED in layouts)
    return np.fromiter(_begins(sizes.tolist()), np.int64)


def _sizes(lengths: RowLengths, most_tokens: float, *, is_padded: bool) -> IntArray:
    sizes = np.ones_like(lengths.row_tokens)
    row_tokens, target_tokens = lengths
    size, join = 1, np.maximum if is_padded else np.add
    while len(row_tokens) > size:
        row_tokens = join(row_tokens[:-size], row_tokens[size:])
        target_tokens = join(target_tokens[:-size], target_tokens[size:])
        size *= 2
        tokens = (row_tokens + target_tokens) * (size if is_padded else 1)
        sizes[: len(row_tokens)][tokens <= most_tokens] = size
    return sizes


def _begins(sizes: Sequence[int]) -> Iterator[int]:
    begin = 0
    while begin < len(sizes):
        yield begin
        begin += sizes[begin]
    yield begin
