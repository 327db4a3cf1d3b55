"""Residual stream of a micro-batch on the shards of a stage: whole on each, or spread over them.

Spreading it is sequence parallelism: norms and additions to the stream run on each shard for its
own tokens. Tokens are gathered where maps divide outputs, and sums over shards leave each shard its
own tokens.

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198, section 4.2.
"""

from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from dynapipe_hpc.models.deferred_weights import weight_gradient
from dynapipe_hpc.models.sharding.shards import Shards, copy_to_shards, reduce_from_shards

if TYPE_CHECKING:
    from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear


class ResidualStream:
    """Residual stream of a micro-batch, which every shard holds whole, or see `SpreadStream`.

    Tensors "of the stream" have the form in which shards hold it, here (rows, tokens, width); other
    tensors have the shape (rows, tokens, ...).

    Attributes:
        token_dimension: Dimension of a tensor of the stream that counts tokens.
        n_own: Size of that dimension.
        keys: Keys of all tokens for dropout, shape (rows, tokens); None to drop nothing.
        own_keys: Keys of the tokens of a tensor of the stream, of its shape without the width.
    """

    token_dimension = 1

    def __init__(self, shards: Shards, tokens: int, keys: Tensor | None = None) -> None:
        """Takes the shards of a stage, the length of rows, and keys for dropout."""
        self._shards = shards
        self.n_own = tokens
        self.keys = self.own_keys = keys

    def end(self, hidden: Tensor) -> Tensor:
        """A tensor that all shards hold, and with which all go on alike."""
        return hidden

    def gather(self, hidden: Tensor) -> Tensor:
        """All tokens, with which each shard continues on its own; sums gradients over shards."""
        return copy_to_shards(hidden, self._shards)

    def map(self, hidden: Tensor, *maps: "ColumnLinear") -> tuple[Tensor, ...]:
        """All tokens, mapped to this shard's outputs of each map."""
        hidden = self.gather(hidden)
        return tuple(each(hidden) for each in maps)

    def sum(self, part: Tensor) -> Tensor:
        """The sum over shards of what each computed of all tokens; of the stream."""
        return reduce_from_shards(part, self._shards)

    def common(self, weight: Tensor) -> Tensor:
        """A weight that all shards hold, for use with what only one shard computes."""
        return copy_to_shards(weight, self._shards)

    def rows_of(self, table: Tensor, positions: Tensor | None = None) -> Tensor:
        """Row i of a table, shape (positions, width), for every token at position i.

        Args:
            table: Shape (positions, width).
            positions: Positions of the tokens of a packed row, shape (tokens,); None if they count
                from the start of each row.
        """
        if positions is None:
            return table[: self.n_own]
        return functional.embedding(positions, table)


class SpreadStream(ResidualStream):
    """Residual stream of which every shard holds an equal part of all tokens.

    Tokens are numbered through all rows, and zeros fill up the last parts. Shape (tokens of a
    shard, width).
    """

    token_dimension = 0

    def __init__(self, shards: Shards, rows: int, tokens: int, keys: Tensor | None = None) -> None:
        """Takes the shards of a stage, the size of a micro-batch, and keys for dropout."""
        self._shards = shards
        self._rows, self._tokens = rows, tokens
        self.n_own = -(-rows * tokens // shards.n_shards)
        self.keys = keys
        self.own_keys = None if keys is None else self.own_tokens(keys.unsqueeze(-1)).squeeze(-1)

    def end(self, hidden: Tensor) -> Tensor:
        return _passed(hidden, self.all, self.own_tokens)

    def gather(self, hidden: Tensor) -> Tensor:
        return _passed(hidden, self.all, self.own_sum)

    def map(self, hidden: Tensor, *maps: "ColumnLinear") -> tuple[Tensor, ...]:
        firsts = [each.adapters.first_weights for each in maps]
        weights = [*(each.weight for each in maps), *chain(*firsts)]
        biases = [*(each.bias for each in maps), *[None] * (len(weights) - len(maps))]
        mapped: tuple[Tensor, ...] = _Map.apply(hidden, self, *weights, *biases)  # type: ignore[no-untyped-call]
        outputs, lows = mapped[: len(maps)], iter(mapped[len(maps) :])
        return tuple(
            output + each.adapters.added(list(islice(lows, len(each.adapters))))
            if each.adapters
            else output
            for each, output in zip(maps, outputs, strict=True)
        )

    def sum(self, part: Tensor) -> Tensor:
        return _passed(part, self.own_sum, self.all)

    def common(self, weight: Tensor) -> Tensor:
        return weight  # as gradients of all that shards hold are summed before the update

    def rows_of(self, table: Tensor, positions: Tensor | None = None) -> Tensor:
        first = self._shards.shard * self.n_own
        numbers = torch.arange(first, first + self.n_own, device=table.device) % self._tokens
        return functional.embedding(numbers if positions is None else positions[numbers], table)

    def own_tokens(self, whole: Tensor) -> Tensor:
        """This shard's tokens of a tensor with all of them."""
        first = self._shards.shard * self.n_own
        own = whole.flatten(0, 1)[first : first + self.n_own]
        return _filled_up(own, self.n_own)

    def all(self, hidden: Tensor) -> Tensor:
        """All tokens, from those of every shard (all-gather)."""
        gathered = self._shards.gather_over_shards(hidden.contiguous())
        return gathered[: self._rows * self._tokens].view(self._rows, self._tokens, -1)

    def own_sum(self, part: Tensor) -> Tensor:
        """This shard's tokens of a sum over shards (reduce-scatter)."""
        whole = _filled_up(part.flatten(0, 1), self._shards.n_shards * self.n_own)
        return self._shards.sum_own_over_shards(whole.contiguous())


def residual_stream(
    shards: Shards, rows: int, tokens: int, keys: Tensor | None = None
) -> ResidualStream:
    """The stream of a micro-batch of some rows, in the form that the shards have agreed on."""
    if shards.sequence_parallel and shards.n_shards > 1:
        return SpreadStream(shards, rows, tokens, keys)
    return ResidualStream(shards, tokens, keys)


def _filled_up(tokens: Tensor, n_tokens: int) -> Tensor:
    """Tokens with zeros after the last; the same tensor, not a copy, if none are missing."""
    n_missing = n_tokens - len(tokens)
    return functional.pad(tokens, (0, 0, 0, n_missing)) if n_missing else tokens


def _passed(
    values: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> Tensor:
    """A tensor passed between shards in one way, its gradient in another."""
    output: Tensor = _Passed.apply(values, forward, backward)  # type: ignore[no-untyped-call]
    return output


class _Passed(Function):
    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], Tensor],
    ) -> Tensor:
        context.pass_back = backward
        return forward(values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return context.pass_back(gradients[0]), None, None


class _Map(Function):
    """Linear maps of gathered tokens; keeps a shard's own tokens only."""

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
