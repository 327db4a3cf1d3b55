"""Decoder-only models as torch modules: attention, embedding, and the layers of one stage."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.decoder import DecoderShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.head import Head
from dynapipe_hpc.models.initialize import Deviation, gpt_deviation
from dynapipe_hpc.models.layer import GatedFeedForward, GeluFeedForward, TransformerLayer
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.sharding.sharded_linear import (
    ColumnLinear,
    ResidualStream,
    RowLinear,
    TokenEmbedding,
    residual_stream,
)
from dynapipe_hpc.models.sharding.shards import Shards


class SelfAttention(nn.Module):
    """Self-attention in which a position sees itself and earlier ones in its row or document.

    Every shard has its own query heads and key-value heads; several query heads may share one
    key-value head (grouped queries).

    Source: Ainslie et al., "GQA", arXiv:2305.13245.
    """

    def __init__(self, shape: DecoderShape, shards: Shards, layer: int = 0) -> None:
        super().__init__()
        self._layer = layer
        settings, width = shape.layer_settings, shape.hidden_size
        has_bias = settings.qkv_bias
        self.head_size = shape.head_width
        heads, sources = shape.attention_size, settings.n_kv_heads * shape.head_width
        self.is_joined = settings.is_joined
        if self.is_joined:
            joined = ColumnLinear(width, 3 * heads, shards, n_blocks=3, bias=has_bias)
            self.query_key_value = joined
        else:
            self.query = ColumnLinear(width, heads, shards, bias=has_bias)
            self.key = ColumnLinear(width, sources, shards, bias=has_bias)
            self.value = ColumnLinear(width, sources, shards, bias=has_bias)
        norm_of_heads = partial(HeadNorm, shape.head_width, eps=shape.norm_epsilon)
        self.query_norm = norm_of_heads() if settings.qk_norm else None
        self.key_norm = norm_of_heads() if settings.qk_norm else None
        self.output = RowLinear(heads, width, shards, bias=settings.output_bias)

    def forward(self, hidden: Tensor, stream: ResidualStream, batch: Batch) -> Tensor:
        # Queries, keys and values, each of shape (rows, tokens, heads, head size).
        if self.is_joined:
            (joined,) = stream.map(hidden, self.query_key_value)
            query, key, value = joined.view(*joined.shape[:2], 3, -1, self.head_size).unbind(2)
        else:
            mapped = stream.map(hidden, self.query, self.key, self.value)
            query, key, value = (each.view(*each.shape[:2], -1, self.head_size) for each in mapped)
        if self.query_norm and self.key_norm:
            query, key = self.query_norm(query, stream), self.key_norm(key, stream)
        if batch.angles is not None:
            query, key = batch.angles.turn(query), batch.angles.turn(key)
        attended = batch.attend(query, key, value, layer=self._layer).flatten(2)
        output: Tensor = self.output(attended, stream)
        return output


class HeadNorm(nn.RMSNorm):
    """RMS norm over the width of a head, with learned scales that all heads share (Qwen3)."""

    def forward(self, vectors: Tensor, stream: ResidualStream) -> Tensor:  # type: ignore[override]
        """Normalises a shard's heads, shape (rows, tokens, heads, head size)."""
        scales = stream.common(self.weight)
        return functional.rms_norm(vectors, scales.shape, scales, self.eps)


def norm_of(shape: DecoderShape) -> nn.Module:
    """Norm over the width: layer norm, or RMS norm, computed in float32 at least."""
    kind = nn.LayerNorm if shape.layer_settings.has_layer_norms else nn.RMSNorm
    return kind(shape.hidden_size, eps=shape.norm_epsilon)


def layer_of(shape: DecoderShape, shards: Shards, index: int = 0) -> TransformerLayer:
    settings = shape.layer_settings
    return TransformerLayer(
        attention_norm=norm_of(shape),
        attention=SelfAttention(shape, shards, index),
        feed_forward_norm=norm_of(shape),
        feed_forward=GatedFeedForward(shape, shards, functional.silu, bias=settings.ffn_bias)
        if settings.is_gated
        else GeluFeedForward(shape, shards, bias=settings.ffn_bias),
    )


class Embedding(nn.Module):
    """Embedding: learned vectors of tokens and of the first `n_positions` of a row or document."""

    def __init__(self, shape: ModelShape, shards: Shards, n_positions: int = 0) -> None:
        super().__init__()
        width = shape.hidden_size
        self.tokens = TokenEmbedding(shape.vocab_size, width, shards)
        self.positions = nn.Embedding(n_positions, width) if n_positions else None
        self.dropout = Dropout()

    def forward(
        self, tokens: Tensor, stream: ResidualStream, positions: Tensor | None = None
    ) -> Tensor:
        """Maps token ids (rows, tokens) and their positions to a tensor of the residual stream."""
        embedded: Tensor = self.tokens(tokens, stream)
        if self.positions is not None:
            embedded = embedded + stream.rows_of(self.positions.weight, positions)
        dropped: Tensor = self.dropout(embedded, stream.own_keys)
        return dropped


class DecoderStage(StageOfFamily):
    """Pipeline stage of a decoder-only model: layers, the embedding first, the head last."""

    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        assert isinstance(shape, DecoderShape)  # noqa: S101 - types
        self._shape, self._shards = shape, shards
        self._is_rotary = not shape.layer_settings.n_positions
        self.embedding: Embedding | None = None
        if self.is_first:
            self.embedding = Embedding(shape, shards, shape.layer_settings.n_positions)
        elif self.is_last and shape.tied_head:  # a copy of the vectors of tokens
            self.embedding = Embedding(shape, shards)
        self.layers = nn.ModuleDict({str(i): layer_of(shape, shards, i) for i in layers})
        self.head = Head(shape, shards, norm_of(shape)) if self.is_last else None

    def deviation(self, shape: ModelShape) -> Deviation:
        return gpt_deviation(shape.n_layers)

    def run(self, activation: Tensor | None, batch: Batch, recompute: Recompute) -> Tensor:
        stream = residual_stream(self._shards, *batch.size, batch.keys)
        positions = batch.positions
        hidden = activation
        if self.is_first and self.embedding is not None and batch.tokens is not None:
            hidden = self.embedding(batch.tokens, stream, positions)
        if hidden is None:
            raise ValueError("neither an activation was received nor tokens loaded")
        if self._is_rotary:
            if positions is None:
                positions = torch.arange(batch.size[1], device=hidden.device)
            angles = Angles.from_positions(self._shape, positions, hidden.dtype)
            batch = replace(batch, angles=angles)
        for layer in self.layers.values():
            hidden = layer(hidden, stream, batch, recompute)
        if self.head is None:
            return hidden
        vectors = None if self.embedding is None else self.embedding.tokens.weight
        ids = None if batch.labels is None else batch.labels.ids
        losses: Tensor = self.head(hidden, stream, ids, vectors)
        return losses
