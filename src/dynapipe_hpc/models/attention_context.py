"""Context of the attention of decoder-only models: all that keys and values pass through."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.models.attention import attention, causal_attention
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.tokens.documents import Documents


class KeyValueCache:
    """Keys and values of the tokens of a row so far, of all layers.

    The first pass reads any number of tokens, each pass after it one more.

    Attributes:
        n_tokens: Number of tokens that earlier passes have read.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        # Those of the layer that comes next are in front, as all passes run the layers in order.
        self._kept: deque[tuple[Tensor, Tensor]] = deque()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Appends those of the next layer in this pass; returns all of the layer.

        Args:
            key: Keys of the tokens of this pass, shape (1, key heads, tokens, head size).
            value: Values of the same tokens, of the shape of `key`.
        """
        if self.n_tokens:
            keys, values = self._kept.popleft()
            key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        self._kept.append((key, value))
        return key, value


@dataclass(frozen=True, slots=True, eq=False)
class AttentionContext:
    """Documents, cache and angles of a micro-batch's attention, in all layers of a stage.

    Attributes:
        documents: Documents of a packed row, which attend to themselves only; None for attention
            over whole rows.
        kv_cache: Keys and values of tokens that the row's only document continues; None in
            training.
        angles: Angles of rotary positions; None where embeddings tell positions.
    """

    documents: Documents | None = None
    kv_cache: KeyValueCache | None = None
    angles: Angles | None = None

    @property
    def positions(self) -> Tensor | None:
        """Positions of a packed row's tokens in their documents; None for those in whole rows."""
        if self.documents is None:
            return None
        n_before = self.kv_cache.n_tokens if self.kv_cache else 0
        return self.documents.positions + n_before if n_before else self.documents.positions

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of every token to itself and to those before it, see `causal_attention`.

        Args:
            query: What attends, shape (rows, tokens, heads, head size).
            key: What is attended to, shape (rows, tokens, key heads, head size).
            value: What is weighted, of the shape of `key`.

        Returns:
            Mixed values, shape (rows, tokens, heads x head size).
        """
        if self.angles is not None:
            query, key = self.angles.turn(query), self.angles.turn(key)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        if self.kv_cache is None:
            mixed = causal_attention(query, key, value, self.documents)
        else:
            key, value = self.kv_cache.append(key, value)
            # Torch aligns its mask with the first key: with keys before the queries, that would
            # hide them. Then there is one query, which sees all keys.
            mixed = attention(query, key, value, is_causal=query.shape[2] > 1)
        return mixed.transpose(1, 2).flatten(2)

    def to(self, device: torch.device) -> Self:
        """The same on a device, before there are angles."""
        return replace(self, documents=self.documents and self.documents.to(device))


WHOLE_ROWS = AttentionContext()
