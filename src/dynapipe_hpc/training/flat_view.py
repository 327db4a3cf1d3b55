"""Views of single weights in the flat buffer of a rank."""

from dataclasses import dataclass

import torch
from torch import nn

from dynapipe_hpc.models.sharding.split import WHOLE, Split, splits_of
from dynapipe_hpc.training.flat_parameters import FlatParameters


@dataclass(frozen=True, slots=True)
class FlatView:
    """Location of a weight of this rank in the flat buffer.

    Attributes:
        name: Name of the weight in the unsplit model.
        start: Index of its first number in the flat buffer.
        shape: Shape of this rank's shard of it.
        split: Split of the weight over shards.
    """

    name: str
    start: int
    shape: torch.Size
    split: Split


def flat_views(module: nn.Module, flat: FlatParameters) -> list[FlatView]:
    """Views of the weights of a module that are in a flat buffer."""
    cut = {name: split for name, split in splits_of(module).items() if split.n_shards > 1}
    return [
        FlatView(name, int(weight.storage_offset()), weight.shape, cut.get(name, WHOLE))
        for name, weight in module.named_parameters()
        if weight in flat.gradient_of
    ]
