"""Linear maps and embeddings that are cut over shards, and adapters of the maps.

A pair of maps needs one sum in either direction; the residual stream between the pairs adds up, see
`residual_stream.py`.

Source:
    Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.models.deferred_weights import linear
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.shards import Shards
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


class ColumnLinear(nn.Module):
    """A linear map of which each shard computes a part of the outputs.

    Args:
        n_inputs: Numbers per token that go in, the same on all shards.
        n_outputs: Numbers per token that come out of all shards together, a multiple of
            `n_blocks` x shards; of one block any number, with zeros after the last.
        shards: The shards of the stage.
        n_blocks: Number of blocks of outputs, of each of which every shard computes its part.
        bias: Whether there is one.
    """

    def __init__(
        self, n_inputs: int, n_outputs: int, shards: Shards, *, n_blocks: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        n_own = -(-n_outputs // shards.n_shards)
        self.weight = nn.Parameter(torch.empty(n_own, n_inputs))
        self.bias = nn.Parameter(torch.empty(n_own)) if bias else None
        whole_size = n_outputs if n_blocks == 1 else None
        split = Split(0, n_blocks, shards.shard, shards.n_shards, whole_size)
        self.splits = dict.fromkeys(("weight", "bias") if bias else ("weight",), split)
        self.adapters = Adapters()

    def adapt(self, blocks: Sequence[str], lora: Lora) -> None:
        """Adds adapters, without values.

        Args:
            blocks: Names of the blocks of outputs, if each may have an adapter of its own;
                otherwise one name for all outputs.
            lora: Rank, scale, and names of those that have adapters.
        """
        (n_own, n_inputs), split = self.weight.shape, self.splits["weight"]
        if len(blocks) > 1:
            split = replace(split, n_blocks=1)
        sizes = dict.fromkeys(blocks, n_own // len(blocks))
        self.adapters.add(n_inputs, sizes, split, lora)

    def forward(self, values: Tensor) -> Tensor:
        """Maps (..., inputs), the same on all shards, to this shard's (..., outputs / shards).

        The gradient of `values` is this shard's part of it.
        """
        return _mapped(values, self.weight, self.bias, self.adapters)


class RowLinear(nn.Module):
    """A linear map of which each shard has a part of the inputs, and all get the outputs.

    Args:
        n_inputs: Numbers per token that go into all shards together, a multiple of shards.
        n_outputs: Numbers per token that come out, the same on all shards.
        shards: The shards of the stage.
        bias: Whether there is one; every shard holds the whole of it.
    """

    def __init__(self, n_inputs: int, n_outputs: int, shards: Shards, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_outputs, n_inputs // shards.n_shards))
        self.bias = nn.Parameter(torch.empty(n_outputs)) if bias else None
        split = Split(1, 1, shards.shard, shards.n_shards)
        self.splits = {"weight": split}
        self.adapters = Adapters()
        self.dropout = Dropout()
        self._n_shards = shards.n_shards

    def adapt(self, blocks: Sequence[str], lora: Lora) -> None:
        """Adds an adapter, without values; see `ColumnLinear.adapt`, here with one name."""
        (name,), (n_outputs, n_inputs) = blocks, self.weight.shape
        self.adapters.add(n_inputs, {name: n_outputs}, self.splits["weight"], lora)

    def forward(self, values: Tensor, stream: ResidualStream) -> Tensor:
        """Maps this shard's (..., inputs / shards) to a tensor of the stream, with dropout."""
        dropped: Tensor = self.dropout(self._mapped(values, stream), stream.own_keys)
        return dropped

    def _mapped(self, values: Tensor, stream: ResidualStream) -> Tensor:
        if self._n_shards == 1:
            return _mapped(values, self.weight, self.bias, self.adapters)
        output = stream.sum(_mapped(values, self.weight, None, self.adapters))
        return output if self.bias is None else output + self.bias


def _mapped(values: Tensor, weight: Tensor, bias: Tensor | None, adapters: Adapters) -> Tensor:
    if not adapters:
        return linear(values, weight, bias)
    # First, so that a pass that computes again, for what these keep, need not go on to the weight.
    added = adapters.added([linear(values, first) for first in adapters.first_weights])
    return linear(values, weight, bias) + added


class TokenEmbedding(nn.Module):
    """Learned vectors, of which each shard holds those of a range of ids."""

    def __init__(self, vocab_size: int, width: int, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(-(-vocab_size // shards.n_shards), width))
        split = Split(0, 1, shards.shard, shards.n_shards, vocab_size)
        self.splits = {"weight": split}
        self._shards = shards

    def forward(self, tokens: Tensor, stream: ResidualStream) -> Tensor:
        """Maps ids (rows, tokens) to their vectors; of the stream."""
        if self._shards.n_shards == 1:
            return functional.embedding(tokens, self.weight)
        own, is_own = _own_ids(tokens, len(self.weight), self._shards)
        found = functional.embedding(own, self.weight) * is_own.unsqueeze(-1)
        return stream.sum(found)


def _own_ids(ids: Tensor, n_own: int, shards: Shards) -> tuple[Tensor, Tensor]:
    """Places of ids in this shard's range, 0 for those of others; and which are its own."""
    places = ids - shards.shard * n_own
    is_own = (places >= 0) & (places < n_own)
    return places * is_own, is_own
