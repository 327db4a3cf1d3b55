"""Keys and values of tokens that were read before, so that they need not be computed again."""

from collections import deque

import torch
from torch import Tensor


class Earlier:
    """Keys and values of the tokens of a row so far, of all layers (a KV cache).

    The first pass reads any number of tokens, each pass after it one more.

    Attributes:
        n_tokens: Number of tokens that earlier passes have read.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        # Those of the layer that comes next are in front, as all passes run the layers in order.
        self._kept: deque[tuple[Tensor, Tensor]] = deque()

    def followed_by(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the next layer: those so far and those of this pass, which are kept.

        Args:
            key: Keys of the tokens of this pass, shape (1, key heads, tokens, head size).
            value: Values of the same tokens, of the shape of `key`.
        """
        if self.n_tokens:
            keys, values = self._kept.popleft()
            key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        self._kept.append((key, value))
        return key, value
