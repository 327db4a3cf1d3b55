"""Linear maps and embeddings that are cut over shards, adapters of the maps, and what lies between.

A pair of maps needs one sum over shards per direction, and adds it to the residual stream. Each
shard of a stage holds all of the stream, or its own tokens (sequence parallelism). With the latter,
norms and additions run on each shard for its own tokens, tokens are gathered before maps that
divide outputs, and sums over shards leave each shard its own tokens.

Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.models.deferred_weights import linear, weight_gradient
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.sharding.shards import (
    Shards,
    Split,
    copy_to_shards,
    passed,
    reduce_from_shards,
)


class ResidualStream:
    """Residual stream of a micro-batch, all of it on every shard; `SpreadStream` divides it.

    Tensors "of the stream" have the form in which shards hold it, here (rows, tokens, width); other
    tensors have the shape (rows, tokens, ...).

    `keys`: Keys of all tokens for dropout, shape (rows, tokens); None to drop nothing. `own_keys`:
    Keys of the tokens that this shard holds, of the shape of a stream tensor without the width.
    """

    token_dimension = 1

    def __init__(self, shards: Shards, tokens: int, keys: Tensor | None = None) -> None:
        self._shards = shards
        self.n_own = tokens
        self.keys = self.own_keys = keys

    def end(self, hidden: Tensor) -> Tensor:
        """All tokens of a tensor of the stream, for work that is the same on all shards."""
        return hidden

    def gather(self, hidden: Tensor) -> Tensor:
        """All tokens, for different work on each shard; backward sums gradients over shards."""
        return copy_to_shards(hidden, self._shards)

    def map(self, hidden: Tensor, *maps: "ColumnLinear") -> tuple[Tensor, ...]:
        """All tokens, mapped to this shard's outputs of each map."""
        hidden = self.gather(hidden)
        return tuple(each(hidden) for each in maps)

    def sum(self, part: Tensor) -> Tensor:
        """The sum over shards of what each computed for all tokens, as a tensor of the stream."""
        return reduce_from_shards(part, self._shards)

    def common(self, weight: Tensor) -> Tensor:
        """A weight that all shards hold, for use in work that differs between shards."""
        return copy_to_shards(weight, self._shards)

    def rows_of(self, table: Tensor, positions: Tensor | None = None) -> Tensor:
        """Row i of a table, shape (positions, width), for every token at position i.

        `positions`: Positions of the tokens of a packed row, shape (tokens,); None if they count
        from the start of each row.
        """
        if positions is None:
            return table[: self.n_own]
        return functional.embedding(positions, table)


class SpreadStream(ResidualStream):
    """Residual stream of which every shard holds an equal part of all tokens.

    Tokens are numbered across all rows, and zeros fill up the last parts. Its tensors have the
    shape (tokens of a shard, width).
    """

    token_dimension = 0

    def __init__(self, shards: Shards, rows: int, tokens: int, keys: Tensor | None = None) -> None:
        self._shards = shards
        self._rows, self._tokens = rows, tokens
        self.n_own = -(-rows * tokens // shards.n_shards)
        self.keys = keys
        self.own_keys = None if keys is None else self.own_tokens(keys.unsqueeze(-1)).squeeze(-1)

    def end(self, hidden: Tensor) -> Tensor:
        return passed(hidden, self.all, self.own_tokens)

    def gather(self, hidden: Tensor) -> Tensor:
        return passed(hidden, self.all, self.own_sum)

    def map(self, hidden: Tensor, *maps: "ColumnLinear") -> tuple[Tensor, ...]:
        weights: list[Tensor] = [each.weight for each in maps]
        weights += chain(*(each.first_weights for each in maps))
        biases = [*(each.bias for each in maps), *[None] * (len(weights) - len(maps))]
        mapped: tuple[Tensor, ...] = _Map.apply(hidden, self, *weights, *biases)  # type: ignore[no-untyped-call]
        outputs, lows = mapped[: len(maps)], iter(mapped[len(maps) :])
        added = [each.added(list(islice(lows, len(each.adapters)))) for each in maps]
        pairs = zip(outputs, added, strict=True)
        return tuple(output if more is None else output + more for output, more in pairs)

    def sum(self, part: Tensor) -> Tensor:
        return passed(part, self.own_sum, self.all)

    def common(self, weight: Tensor) -> Tensor:
        return weight  # gradients of weights that all shards hold are summed before the update

    def rows_of(self, table: Tensor, positions: Tensor | None = None) -> Tensor:
        first = self._shards.shard * self.n_own
        numbers = torch.arange(first, first + self.n_own, device=table.device) % self._tokens
        return functional.embedding(numbers if positions is None else positions[numbers], table)

    def own_tokens(self, whole: Tensor) -> Tensor:
        first = self._shards.shard * self.n_own
        own_tokens = whole.flatten(0, 1)[first : first + self.n_own]
        return _filled_up(own_tokens, self.n_own)

    def all(self, hidden: Tensor) -> Tensor:
        """All tokens, from those of every shard (all-gather)."""
        gathered = self._shards.gather_over_shards(hidden.contiguous())
        return gathered[: self._rows * self._tokens].view(self._rows, self._tokens, -1)

    def own_sum(self, part: Tensor) -> Tensor:
        """The sum over shards, for this shard's tokens (reduce-scatter)."""
        whole = _filled_up(part.flatten(0, 1), self._shards.n_shards * self.n_own)
        return self._shards.sum_own_over_shards(whole.contiguous())


def residual_stream(
    shards: Shards, rows: int, tokens: int, keys: Tensor | None = None
) -> ResidualStream:
    """The residual stream of a micro-batch, in the form that the shards use."""
    if shards.sequence_parallel and shards.n_shards > 1:
        return SpreadStream(shards, rows, tokens, keys)
    return ResidualStream(shards, tokens, keys)


def _filled_up(tokens: Tensor, n_tokens: int) -> Tensor:
    """Tokens with zeros after the last; the same tensor, not a copy, if none are missing."""
    n_missing = n_tokens - len(tokens)
    return functional.pad(tokens, (0, 0, 0, n_missing)) if n_missing else tokens


class _Map(Function):
    """Linear maps of gathered tokens; keeps only the shard's own tokens for backward."""

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, stream: SpreadStream, *parameters: Any
    ) -> tuple[Tensor, ...]:
        n_maps = len(parameters) // 2
        weights, biases = parameters[:n_maps], parameters[n_maps:]
        context.stream, context.weights = stream, weights
        context.trains_bias = [bias is not None and bias.requires_grad for bias in biases]
        is_needed = any(weight.requires_grad for weight in weights)
        context.save_for_backward(hidden if is_needed else None, *weights)
        whole = stream.all(hidden)
        return tuple(functional.linear(whole, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *weights = context.saved_tensors
        whole = None if hidden is None else context.stream.all(hidden).flatten(0, 1)
        grad_maps = [gradient.flatten(0, 1) for gradient in gradients]
        grad_weights = [
            weight_gradient(weight, whole, gradient)
            if weight.requires_grad and whole is not None
            else None
            for weight, gradient in zip(context.weights, grad_maps, strict=True)
        ]
        grad_biases = [
            gradient.sum(0) if is_trained else None
            for gradient, is_trained in zip(grad_maps, context.trains_bias, strict=True)
        ]
        parts = [gradient @ weight for gradient, weight in zip(gradients, weights, strict=True)]
        grad_hidden = context.stream.own_sum(sum(parts[1:], parts[0]))
        return grad_hidden, None, *grad_weights, *grad_biases


LORA_A, LORA_B = "lora_a", "lora_b"


class Adapter(nn.Module):
    """Low-rank adapter: the matrices A and B of a linear map, or of a block of its outputs.

    One of the two is cut like the map. Every shard holds all of the other matrix, but computes only
    one term of that matrix's gradient, a sum over shards, as it sees only some inputs or outputs of
    the map.
    """

    def __init__(self, n_inputs: int, n_outputs: int, split: Split, lora: Lora) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.empty(lora.rank, n_inputs))
        self.lora_b = nn.Parameter(torch.empty(n_outputs, lora.rank))
        self.splits = {LORA_B if split.dimension == 0 else LORA_A: split}
        self._scale = lora.scale

    def forward(self, low: Tensor) -> Tensor:
        """Maps the product of A and inputs, shape (..., rank), to what is added to the outputs."""
        return linear(low * self._scale, self.lora_b)


def has_adapters(module: nn.Module) -> bool:
    """Whether a module holds adapters; if so, all its other weights are frozen."""
    return any(isinstance(inner, Adapter) for inner in module.modules())


class ShardedLinear(nn.Module):
    """A linear map whose weight is cut over shards, with adapters by blocks of its outputs."""

    def __init__(self, n_inputs: int, n_outputs: int, split: Split, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_outputs, n_inputs))
        self.bias = nn.Parameter(torch.empty(n_outputs)) if bias else None
        self.splits = {"weight": split}
        self.adapters = nn.ModuleDict()
        self._block_sizes: Mapping[str, int] = {}

    def adapt(self, blocks: Sequence[str], lora: Lora) -> None:
        """Adds uninitialized adapters to blocks of outputs, by name; a single name means all."""
        (n_outputs, n_inputs), split = self.weight.shape, self.splits["weight"]
        if len(blocks) > 1:
            split = replace(split, n_blocks=1)
        self._block_sizes = dict.fromkeys(blocks, n_outputs // len(blocks))
        for name, size in self._block_sizes.items():
            if lora.adapts(name):
                self.adapters[name] = Adapter(n_inputs, size, split, lora)

    @property
    def first_weights(self) -> list[Tensor]:
        """The matrices A of all adapters, each of shape (rank, inputs)."""
        return [each.lora_a for each in self.adapters.values() if isinstance(each, Adapter)]

    def added(self, lows: Sequence[Tensor]) -> Tensor | None:
        """Sum that adapters add to the outputs, from each A times the inputs; None without any."""
        if not lows:
            return None
        pairs = zip(self.adapters.items(), lows, strict=True)
        added: dict[str, Tensor] = {name: adapter(low) for (name, adapter), low in pairs}
        blocks = [
            added[name] if name in added else lows[0].new_zeros(*lows[0].shape[:-1], size)
            for name, size in self._block_sizes.items()
        ]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, -1)

    def mapped(self, values: Tensor, bias: Tensor | None) -> Tensor:
        """Values, shape (..., inputs), mapped by this shard's part of the weight and adapters."""
        # Adapters first, so that recomputation of what they keep can stop before the product with
        # the weight.
        added = self.added([linear(values, first) for first in self.first_weights])
        output = linear(values, self.weight, bias)
        return output if added is None else output + added


class ColumnLinear(ShardedLinear):
    """A linear map that divides its outputs over shards; all shards have all inputs.

    The outputs of all shards are a multiple of `n_blocks` x shards, and every shard computes a part
    of each block; with one block any number, as zeros fill up the last shard.
    """

    def __init__(
        self, n_inputs: int, n_outputs: int, shards: Shards, *, n_blocks: int = 1, bias: bool
    ) -> None:
        whole_size = n_outputs if n_blocks == 1 else None
        split = Split(0, n_blocks, shards.shard, shards.n_shards, whole_size)
        super().__init__(n_inputs, -(-n_outputs // shards.n_shards), split, bias=bias)
        if bias:
            self.splits["bias"] = split

    def forward(self, values: Tensor) -> Tensor:
        """Maps (..., inputs), the same on all shards, to this shard's (..., outputs / shards).

        Backward gives only this shard's part of the gradient of `values`.
        """
        return self.mapped(values, self.bias)


class RowLinear(ShardedLinear):
    """A linear map that divides its inputs equally over shards; all shards get all outputs.

    Every shard holds all of the bias.
    """

    def __init__(self, n_inputs: int, n_outputs: int, shards: Shards, *, bias: bool) -> None:
        split = Split(1, 1, shards.shard, shards.n_shards)
        super().__init__(n_inputs // shards.n_shards, n_outputs, split, bias=bias)
        self.dropout = Dropout()
        self._n_shards = shards.n_shards

    def forward(self, values: Tensor, stream: ResidualStream) -> Tensor:
        """Maps this shard's (..., inputs / shards) to a tensor of the stream, with dropout."""
        if self._n_shards == 1:
            output = self.mapped(values, self.bias)
        else:
            output = stream.sum(self.mapped(values, None))
            output = output if self.bias is None else output + self.bias
        dropped: Tensor = self.dropout(output, stream.own_keys)
        return dropped


class TokenEmbedding(nn.Module):
    """Learned vectors of token ids; each shard holds the vectors of a range of ids."""

    def __init__(self, vocab_size: int, width: int, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(-(-vocab_size // shards.n_shards), width))
        split = Split(0, 1, shards.shard, shards.n_shards, vocab_size)
        self.splits = {"weight": split}
        self._shards = shards

    def forward(self, tokens: Tensor, stream: ResidualStream) -> Tensor:
        """Maps ids (rows, tokens) to their vectors, as a tensor of the residual stream."""
        if self._shards.n_shards == 1:
            return functional.embedding(tokens, self.weight)
        n_own = len(self.weight)
        rows, is_own = places_in(tokens - self._shards.shard * n_own, range(n_own))
        vectors = functional.embedding(rows, self.weight) * is_own.unsqueeze(-1)
        return stream.sum(vectors)


def places_in(ids: Tensor, chunk: range) -> tuple[Tensor, Tensor]:
    """Places of ids in a range, 0 for ids outside of it; and which ids are inside."""
    is_inside = (ids >= chunk.start) & (ids < chunk.stop)
    return (ids - chunk.start) * is_inside, is_inside
