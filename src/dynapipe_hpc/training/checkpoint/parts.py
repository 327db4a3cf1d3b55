"""Parts of a model's state that a rank holds, named as in the unsplit model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.sharding.split import WHOLE, Split, splits_of
from dynapipe_hpc.training.checkpoint.boxes import boxes_of
from dynapipe_hpc.training.checkpoint.shard_boxes import placed
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.update_rule import FlatState, Segment


@dataclass(frozen=True, slots=True, eq=False)
class Part:
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


@dataclass(frozen=True, slots=True)
class Placement:
    """Location of a weight of this rank in the flat buffer.

    Attributes:
        name: Name of the weight in the unsplit model.
        start: Index of its first number in the flat buffer.
        shape: Shape of this rank's shard of it.
        split: How the weight is cut over shards.
    """

    name: str
    start: int
    shape: torch.Size
    split: Split

    def parts(self, kind: str, segment: Segment) -> Iterator[Part]:
        """Parts of the weight that a segment holds."""
        start = max(self.start, segment.start)
        stop = min(self.start + self.shape.numel(), segment.start + len(segment.values))
        if start >= stop:
            return
        rest = segment.values[start - segment.start : stop - segment.start]
        for box in boxes_of(self.shape, start - self.start, stop - self.start):
            n = torch.Size(box.sizes).numel()
            values, rest = rest[:n].view(box.sizes), rest[n:]
            for found in placed(box, self.split, self.shape):
                d, inner = self.split.dimension, found.of_shard
                block = values.narrow(d, inner.offsets[d] - box.offsets[d], inner.sizes[d])
                offsets = torch.Size(found.of_unsplit.offsets)
                shape = self.split.whole_shape(self.shape)
                yield Part(f"{kind}/{self.name}", shape, offsets, block)


def placements(module: nn.Module, flat: FlatParameters) -> list[Placement]:
    """Placements of the weights of a module that are in a flat buffer."""
    cut = {name: split for name, split in splits_of(module).items() if split.n_shards > 1}
    return [
        Placement(name, int(weight.storage_offset()), weight.shape, cut.get(name, WHOLE))
        for name, weight in module.named_parameters()
        if weight in flat.gradient_of
    ]


def whole_parts(module: nn.Module, *, frozen_only: bool = False) -> list[Part]:
    """All parts of the weights of a module, or of those that are not trained.

    The weights need not be in a flat buffer.
    """
    splits = splits_of(module)
    return [
        part
        for name, weight in module.named_parameters()
        if not (frozen_only and weight.requires_grad)
        for part in Placement(name, 0, weight.shape, splits.get(name, WHOLE)).parts(
            "weight", Segment(0, weight.detach().view(-1))
        )
    ]


def parts_of(placed_weights: Sequence[Placement], state: FlatState) -> list[Part]:
    """All parts of a state."""
    return [
        part
        for kind, segment in state.items()
        for weight in placed_weights
        for part in weight.parts(kind, segment)
    ]
