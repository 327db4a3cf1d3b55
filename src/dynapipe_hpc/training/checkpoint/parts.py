"""Parts of a model's state that a rank holds, named as in the unsplit model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.sharding.split import WHOLE, Split, splits_of
from dynapipe_hpc.training.checkpoint.boxes import Box, boxes_of
from dynapipe_hpc.training.flat_parameters import FlatState, FlatView, Segment


@dataclass(frozen=True, slots=True, eq=False)
class StatePart:
    """A block of a tensor of the unsplit model.

    Attributes:
        name: Kind of state and name of the weight, as in `weight/head.norm.bias`.
        tensor_shape: Shape of the unsplit tensor.
        offsets: First index of the block, per dimension.
        values: Values of the block; a view.
    """

    name: str
    tensor_shape: torch.Size
    offsets: torch.Size
    values: Tensor


def view_parts(view: FlatView, kind: str, segment: Segment) -> Iterator[StatePart]:
    """Parts of a weight that a segment of the flat buffer holds, of one kind of state."""
    start = max(view.start, segment.start)
    stop = min(view.start + view.shape.numel(), segment.start + len(segment.values))
    if start >= stop:
        return
    rest = segment.values[start - segment.start : stop - segment.start]
    for box in boxes_of(view.shape, start - view.start, stop - view.start):
        n = torch.Size(box.sizes).numel()
        values, rest = rest[:n].view(box.sizes), rest[n:]
        for pair in placed(box, view.split, view.shape):
            d, inner = view.split.dimension, pair.of_shard
            block = values.narrow(d, inner.offsets[d] - box.offsets[d], inner.sizes[d])
            offsets = torch.Size(pair.of_unsplit.offsets)
            shape = view.split.whole_shape(view.shape)
            yield StatePart(f"{kind}/{view.name}", shape, offsets, block)


def whole_parts(module: nn.Module, *, frozen_only: bool = False) -> list[StatePart]:
    """All parts of the weights of a module, or of those that are not trained.

    The weights need not be in a flat buffer.
    """
    splits = splits_of(module)
    return [
        part
        for name, weight in module.named_parameters()
        if not (frozen_only and weight.requires_grad)
        for part in view_parts(
            FlatView(name, 0, weight.shape, splits.get(name, WHOLE)),
            "weight",
            Segment(0, weight.detach().view(-1)),
        )
    ]


def parts_of(views: Sequence[FlatView], state: FlatState) -> list[StatePart]:
    """All parts of a state."""
    return [
        part
        for kind, segment in state.items()
        for view in views
        for part in view_parts(view, kind, segment)
    ]


@dataclass(frozen=True, slots=True)
class BoxPair:
    """A box of a shard, and where it is in the whole weight."""

    of_shard: Box
    of_unsplit: Box


def placed(box: Box, split: Split, shape: Sequence[int]) -> Iterator[BoxPair]:
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
            yield BoxPair(of_shard, _along(box, d, before + start, stop - start))


def _along(box: Box, dimension: int, offset: int, size: int) -> Box:
    """The box with another extent along a dimension."""
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dimension], sizes[dimension] = offset, size
    return Box(tuple(offsets), tuple(sizes))
