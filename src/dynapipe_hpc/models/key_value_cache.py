"""Keys and values of a sample's tokens so far, for the tokens that come after them."""

from collections.abc import Sequence

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, and the sums of their gradients.

    A buffer holds the keys or values of all tokens, so a pass over some tokens copies nothing of
    other tokens. In the backward direction, later tokens come first; their contributions to the
    gradients of earlier keys and values wait in float32, as sums of many 16-bit numbers would lose
    small ones.
    """

    def __init__(self, n_tokens: int) -> None:
        """Makes an empty cache with room for a number of tokens; more tokens make it grow."""
        self._n_tokens = n_tokens
        self._kept: list[Tensor] = []
        self._sums: list[Tensor] = []

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values, and sums of gradients while there are any: (tokens, key heads, size)."""
        return [*self._kept, *self._sums]

    def write(self, begin: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes keys and values of tokens from `begin` on; returns those of all tokens so far.

        The same tokens may be written again, as recomputation in the backward pass does.
        """
        self._make_room(key, begin + len(key))
        keys, values = self.read(begin + len(key))
        keys[begin:], values[begin:] = key, value
        return keys, values

    def read(self, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens before `end`."""
        keys, values = (kept[:end] for kept in self._kept)
        return keys, values

    def sum_gradients(
        self, begin: int, gradients: Sequence[Tensor], first: int = 0
    ) -> tuple[Tensor, ...]:
        """Adds up gradients; returns the sums of tokens from `begin` on, which are now complete."""
        if not self._sums:
            self._sums = [_wide_zeros(gradient, first + len(gradient)) for gradient in gradients]
        for total, gradient in zip(self._sums, gradients, strict=True):
            total[first:].add_(gradient)
        complete = tuple(total[begin:].to(gradients[0].dtype) for total in self._sums)
        self._sums = [total[:begin] for total in self._sums] if begin else []
        return complete

    def _make_room(self, like: Tensor, n_tokens: int) -> None:
        n_before = len(self._kept[0]) if self._kept else 0
        if n_tokens <= n_before:
            return
        n_rows = max(n_tokens, 2 * n_before or self._n_tokens)
        larger = [like.new_empty((n_rows, *like.shape[1:])) for _ in range(2)]
        if n_before:
            for new, old in zip(larger, self._kept, strict=True):
                new[:n_before] = old
        self._kept = larger


def _wide_zeros(gradient: Tensor, n_tokens: int) -> Tensor:
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return gradient.new_zeros(n_tokens, *gradient.shape[1:], dtype=wide)


class KeyValueCache:
    """Keys and values of a sample's tokens so far, of all layers of a stage."""

    def __init__(self, n_tokens: int = 0) -> None:
        self.n_tokens = 0  # so far, in generation; unused in training
        self._n_tokens = n_tokens
        self._layers: dict[int, LayerCache] = {}

    def layer(self, index: int) -> LayerCache:
        return self._layers.setdefault(index, LayerCache(self._n_tokens))

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self._layers.values() for tensor in layer.tensors]
