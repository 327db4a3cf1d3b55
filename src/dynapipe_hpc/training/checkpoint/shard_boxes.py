"""Boxes of a shard, placed in the whole weight."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynapipe_hpc.models.sharding.split import Split
from dynapipe_hpc.training.checkpoint.boxes import Box


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A box of a shard, and where it is in the whole weight."""

    of_shard: Box
    of_unsplit: Box


def placed(box: Box, split: Split, shape: Sequence[int]) -> Iterator[Whereabouts]:
    """A box of a shard of the given shape, cut so that each part is a box of the whole weight.

    What the shard is filled up with has no place there.
    """
    d = split.dimension
    width = shape[d] // split.n_blocks
    n_real = width if split.whole_size is None else split.whole_size - split.shard * width
    for block in range(split.n_blocks):
        start = max(box.offsets[d], block * width)
        stop = min(box.offsets[d] + box.sizes[d], block * width + min(width, n_real))
        if start < stop:
            before = block * width * (split.n_shards - 1) + split.shard * width
            of_shard = _along(box, d, start, stop - start)
            yield Whereabouts(of_shard, _along(box, d, before + start, stop - start))


def _along(box: Box, dimension: int, offset: int, size: int) -> Box:
    """The box with another extent along a dimension."""
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dimension], sizes[dimension] = offset, size
    return Box(tuple(offsets), tuple(sizes))
