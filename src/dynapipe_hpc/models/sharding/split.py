"""The part of a weight that a shard holds."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Split:
    """Division of a weight into equal shards.

    `n_blocks`: Number of equal blocks along the dimension; a shard gets a part of each, such as the
    queries, keys and values of its heads. `whole_size`: Size of the complete weight in that
    dimension, of one block; beyond its end, zeros fill up the last shards. None if shards divide
    the size.
    """

    dimension: int
    n_blocks: int
    shard: int
    n_shards: int
    whole_size: int | None = None

    def whole_shape(self, shape: torch.Size) -> torch.Size:
        """The shape of the complete weight, from the shape of a shard."""
        sizes = list(shape)
        sizes[self.dimension] = self.whole_size or self.n_shards * sizes[self.dimension]
        return torch.Size(sizes)

    def own_part(self, shard: Tensor) -> Tensor:
        """View of the shard held, without fill beyond the end of the weight."""
        size = shard.shape[self.dimension]
        whole_size = self.whole_size or self.n_shards * size
        return shard.narrow(self.dimension, 0, min(size, max(0, whole_size - self.shard * size)))

    def part_of(self, whole: Tensor) -> Tensor:
        """This shard of a complete weight."""
        if n_padding := -whole.shape[self.dimension] % self.n_shards if self.whole_size else 0:
            shape = list(whole.shape)
            shape[self.dimension] = n_padding
            whole = torch.cat([whole, whole.new_zeros(shape)], self.dimension)
        before, behind = whole.shape[: self.dimension], whole.shape[self.dimension + 1 :]
        blocks = whole.view(*before, self.n_blocks, self.n_shards, -1, *behind)
        part = blocks.select(self.dimension + 1, self.shard)
        return part.flatten(self.dimension, self.dimension + 1)


WHOLE = Split(dimension=0, n_blocks=1, shard=0, n_shards=1)


def splits_of(module: nn.Module) -> dict[str, Split]:
    """Splits of the weights of a module and its submodules, by name; uncut weights are left out.

    A module that holds shards has an attribute `splits`, by the names of its own weights.
    """
    return {
        f"{path}.{name}" if path else name: split
        for path, inner in module.named_modules()
        for name, split in getattr(inner, "splits", {}).items()
    }
