"""Context of the attention of decoder-only models: all that keys and values pass through."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow
from dynapipe_hpc.models.attention import causal_attention, scaled
from dynapipe_hpc.models.branches import Branches
from dynapipe_hpc.models.cached_attention import cached_attention
from dynapipe_hpc.models.key_value_cache import KeyValueCache
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.slice_documents import SliceDocuments
from dynapipe_hpc.models.tokens.documents import Documents


@dataclass(frozen=True, slots=True, eq=False)
class AttentionContext:
    """Documents, cache and angles of a micro-batch's attention, in all layers of a stage.

    Attributes:
        documents: Documents of a packed row, which attend to themselves only; None for attention
            over whole rows.
        slice: Slice of a sample that is the row's first document; None if that is a whole one.
        kv_cache: Keys and values of the sliced sample.
        angles: Angles of rotary positions; None where embeddings tell positions.
        layer: Index in the stage of the layer that attends; only slices need it.
        branches: Rejected answers of the preference pairs of a packed row, which take the place of
            its documents; None if its samples are no pairs.
    """

    documents: Documents | None = None
    slice: SliceDocuments | None = None
    kv_cache: KeyValueCache | None = None
    angles: Angles | None = None
    layer: int = 0
    branches: Branches | None = None

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self:
        """The context of a micro-batch on the host, before there are a cache and angles."""
        documents = Documents.from_microbatch(microbatch)
        if isinstance(microbatch, PackedRow) and microbatch.branches:
            return cls(documents, branches=Branches.from_microbatch(microbatch))
        if documents is None or microbatch.slice is None:
            return cls(documents)
        return cls(documents, SliceDocuments.from_documents(documents, microbatch.slice.begin))

    @property
    def positions(self) -> Tensor | None:
        """Positions of a packed row's tokens in their documents; None for those in whole rows."""
        if self.branches is not None:
            return self.branches.positions
        if self.documents is None:
            return None
        positions = self.documents.positions
        if self.slice is None or self.slice.begin == 0:
            return positions
        n_tokens = self.slice.n_tokens
        return torch.cat([positions[:n_tokens] + self.slice.begin, positions[n_tokens:]])

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
        return self.mix(query, key, value).flatten(2)

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attention as `attend` has it, of queries and keys that are turned already.

        Args:
            query: What attends.
            key: What is attended to.
            value: What is weighted.
            scale: Factor of scores; None for one over the root of the head size.
            window: Number of keys that a query sees at most, itself included; None for all.

        Returns:
            Mixed values, of the shape of `query`.
        """
        if self.branches is not None:
            return self.branches.attend(scaled(query, scale), key, value, window)
        if self.slice is None:
            return _mixed(query, key, value, self.documents, scale=scale, window=window)
        part = self.slice
        if self.kv_cache is None:
            raise ValueError("a slice of a sample needs the keys and values of those before it")
        n_tokens = part.n_tokens
        q, k, v = (each[0, :n_tokens] for each in (scaled(query, scale), key, value))
        layer = self.kv_cache.layer(self.layer)
        mixed = cached_attention(q, k, v, cache=layer, part=part, window=window)[None]
        if part.others is not None:
            q, k, v = (each[:, n_tokens:] for each in (query, key, value))
            mixed = torch.cat([mixed, _mixed(q, k, v, part.others, scale=scale, window=window)], 1)
        return mixed

    def in_layer(self, index: int) -> Self:
        """The context in a layer of the stage, whose keys and values the cache holds apart."""
        return self if self.slice is None else replace(self, layer=index)

    def to(self, device: torch.device) -> Self:
        """The same on a device, before there are angles."""
        return replace(
            self,
            documents=self.documents and self.documents.to(device),
            branches=self.branches and self.branches.to(device),
            slice=self.slice and self.slice.to(device),
        )


def _mixed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents | None,
    *,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Mixed values, tokens before heads, as all are given."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    return causal_attention(q, k, v, documents, scale=scale, window=window).transpose(1, 2)


WHOLE_ROWS = AttentionContext()
