"""Low-rank adapters (LoRA) of linear maps that are cut over shards.

Source:
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv:2106.09685.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.models.deferred_weights import linear
from dynapipe_hpc.models.sharding.split import Split

LORA_A, LORA_B = "lora_a", "lora_b"


class Adapter(nn.Module):
    """Low-rank adapter: the matrices A and B beside a linear map, or beside a block of its outputs.

    One of the two is cut as the map is; every shard holds the whole of the other one, but computes
    only its own part of that one's gradient, as it sees some inputs or outputs of the map only.

    Args:
        n_inputs: Numbers per token that go into the map on this shard.
        n_outputs: Numbers per token that come out on this shard.
        split: How the weight of the map, or of the block, is cut.
        lora: Rank and scale.
    """

    def __init__(self, n_inputs: int, n_outputs: int, split: Split, lora: Lora) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.empty(lora.rank, n_inputs))
        self.lora_b = nn.Parameter(torch.empty(n_outputs, lora.rank))
        self.splits = {LORA_B if split.dimension == 0 else LORA_A: split}
        self._scale = lora.scale

    def forward(self, low: Tensor) -> Tensor:
        """Maps the product of A and inputs (..., rank) to what is added to the outputs."""
        return linear(low * self._scale, self.lora_b)


class Adapters(nn.ModuleDict):
    """Adapters of a linear map, by the names of the blocks of outputs that they add to.

    There are none before `add`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sizes: Mapping[str, int] = {}

    def add(self, n_inputs: int, sizes: Mapping[str, int], split: Split, lora: Lora) -> None:
        """Adds adapters, without values."""
        self._sizes = sizes
        for name, size in sizes.items():
            if lora.adapts(name):
                self[name] = Adapter(n_inputs, size, split, lora)

    @property
    def first_weights(self) -> list[Tensor]:
        """The matrices A, each of shape (rank, inputs)."""
        return [each.lora_a for each in self.values() if isinstance(each, Adapter)]

    def added(self, lows: Sequence[Tensor]) -> Tensor:
        """Sum that the adapters, of which there are some, add to the outputs of the map.

        Args:
            lows: Product of each A and the inputs, each of shape (..., rank).
        """
        added: dict[str, Tensor] = {
            name: self[name](low) for name, low in zip(self, lows, strict=True)
        }
        if len(self._sizes) == 1:
            return next(iter(added.values()))
        blocks = [
            added[name] if name in added else lows[0].new_zeros(*lows[0].shape[:-1], size)
            for name, size in self._sizes.items()
        ]
        return torch.cat(blocks, -1)


def has_adapters(module: nn.Module) -> bool:
    """Whether a module holds adapters, beside which all its other weights are frozen."""
    return any(isinstance(inner, Adapter) for inner in module.modules())
