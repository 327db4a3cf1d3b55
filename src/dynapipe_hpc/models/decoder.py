"""Decoder-only models as torch modules: attention, embedding, and the layers of one stage."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.decoder import DecoderShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute, tokens_held
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.collate import IterationTokens, TokenBatch, collate, dropout_keys
from dynapipe_hpc.models.documents import OnDevice
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.head import Head
from dynapipe_hpc.models.initialize import Deviation, gpt_deviation
from dynapipe_hpc.models.key_value_cache import KeyValueCache
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
    """Self-attention in which a position sees itself and those before it in its row or document.

    Every shard has its own heads of queries and those of keys and values, each of which several
    heads of queries may share (grouped queries).

    Source: Ainslie et al., "GQA", arXiv:2305.13245.
    """

    def __init__(self, shape: DecoderShape, shards: Shards) -> None:
        super().__init__()
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
        self.query_norm = HeadNorm(shape) if settings.qk_norm else None
        self.key_norm = HeadNorm(shape) if settings.qk_norm else None
        self.output = RowLinear(heads, width, shards, bias=settings.output_bias)

    def forward(self, hidden: Tensor, stream: ResidualStream, context: AttentionContext) -> Tensor:
        """Maps a tensor of the stream to another one."""
        query, key, value = self._projected(hidden, stream)
        if self.query_norm and self.key_norm:
            query, key = self.query_norm(query, stream), self.key_norm(key, stream)
        output: Tensor = self.output(context.attend(query, key, value), stream)
        return output

    def _projected(self, hidden: Tensor, stream: ResidualStream) -> tuple[Tensor, ...]:
        """Queries, keys and values, each of shape (rows, tokens, heads, head size)."""
        if self.is_joined:
            (joined,) = stream.map(hidden, self.query_key_value)
            return joined.view(*joined.shape[:2], 3, -1, self.head_size).unbind(2)
        mapped = stream.map(hidden, self.query, self.key, self.value)
        return tuple(each.view(*each.shape[:2], -1, self.head_size) for each in mapped)


class HeadNorm(nn.Module):
    """RMS norm over the width of a head, with learned scales that all heads share (Qwen3)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.head_width))
        self._epsilon = shape.norm_epsilon

    def forward(self, vectors: Tensor, stream: ResidualStream) -> Tensor:
        """Normalises a shard's heads, shape (rows, tokens, heads, head size)."""
        scales = stream.common(self.weight)
        return functional.rms_norm(vectors, scales.shape, scales, self._epsilon)


def norm_of(shape: DecoderShape) -> nn.Module:
    """Norm over the width: layer norm, or RMS norm, computed in float32 at least."""
    kind = nn.LayerNorm if shape.layer_settings.has_layer_norms else nn.RMSNorm
    return kind(shape.hidden_size, eps=shape.norm_epsilon)


def layer_of(shape: DecoderShape, shards: Shards) -> TransformerLayer:
    settings = shape.layer_settings
    return TransformerLayer(
        attention_norm=norm_of(shape),
        attention=SelfAttention(shape, shards),
        feed_forward_norm=norm_of(shape),
        feed_forward=GatedFeedForward(shape, shards, functional.silu, bias=settings.ffn_bias)
        if settings.is_gated
        else GeluFeedForward(shape, shards, bias=settings.ffn_bias),
    )


class Embedding(nn.Module):
    """Embedding: learned vectors of tokens and, in some families, of their positions.

    `n_positions`: Number of positions in row or document that have a vector; 0 for none.
    """

    def __init__(self, shape: ModelShape, shards: Shards, n_positions: int = 0) -> None:
        super().__init__()
        width = shape.hidden_size
        self.tokens = TokenEmbedding(shape.vocab_size, width, shards)
        self.positions = nn.Embedding(n_positions, width) if n_positions else None
        self.dropout = Dropout()

    def forward(self, tokens: Tensor, stream: ResidualStream, context: AttentionContext) -> Tensor:
        """Maps token ids (rows, tokens) to a tensor of the stream."""
        embedded: Tensor = self.tokens(tokens, stream)
        if self.positions is not None:
            embedded = embedded + stream.rows_of(self.positions.weight, context.positions)
        dropped: Tensor = self.dropout(embedded, stream.own_keys)
        return dropped


@dataclass(frozen=True, slots=True, eq=False)
class DecoderBatch(OnDevice):
    """Inputs of a stage of a decoder-only model besides hidden states.

    `size`: Numbers of rows and of tokens per row. `context`: Documents of a packed row; whole rows
    in other layouts. `tokens`: Tokens; None on a stage that neither embeds nor predicts them.
    `keys`: Keys for dropout, shape (rows, tokens); None without.
    """

    size: tuple[int, int]
    context: AttentionContext
    tokens: TokenBatch | None
    keys: Tensor | None = None

    def with_cache(self, kv_cache: KeyValueCache) -> "DecoderBatch":
        return replace(self, context=replace(self.context, kv_cache=kv_cache))


class DecoderStage(StageOfFamily):
    """Pipeline stage of a decoder-only model: layers, the embedding first, the head last."""

    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        """Adds the embedding on the first stage, layers, and the head on the last.

        If the head is tied, the last stage holds a copy of the vectors of tokens.
        """
        assert isinstance(shape, DecoderShape)  # noqa: S101 - types
        self._shape, self._shards = shape, shards
        self._is_rotary = not shape.layer_settings.n_positions
        self.embedding: Embedding | None = None
        if self.is_first:
            self.embedding = Embedding(shape, shards, shape.layer_settings.n_positions)
        elif self.is_last and shape.tied_head:
            self.embedding = Embedding(shape, shards)
        self.layers = nn.ModuleDict({str(i): layer_of(shape, shards) for i in layers})
        self.head = Head(shape, shards, norm_of(shape)) if self.is_last else None

    def deviation(self, shape: ModelShape) -> Deviation:
        return gpt_deviation(shape.n_layers)

    def collate(self, microbatch: MicroBatch, tokens: IterationTokens) -> DecoderBatch:
        read = collate(microbatch, tokens) if self.is_first or self.is_last else None
        size = (microbatch.n_rows, microbatch.row_tokens)
        keys = self._keys(microbatch, tokens) if self.drops else None
        return DecoderBatch(size, AttentionContext.from_microbatch(microbatch), read, keys)

    def run(self, activation: Tensor | None, batch: DecoderBatch, recompute: Recompute) -> Tensor:
        tokens, context = batch.tokens, batch.context
        stream = residual_stream(self._shards, *batch.size, batch.keys)
        hidden = activation
        if self.is_first and self.embedding is not None and tokens is not None:
            hidden = self.embedding(tokens.tokens, stream, context)
        if hidden is None:
            raise ValueError("neither an activation was received nor tokens loaded")
        if self._is_rotary:
            context = self._with_angles(context, batch.size[1], hidden)
        for index, layer in enumerate(self.layers.values()):
            hidden = layer(hidden, stream, recompute, context.in_layer(index))
        if self.head is None:
            return hidden
        if tokens is None:
            raise ValueError("the last stage computes losses and needs labels")
        vectors = None if self.embedding is None else self.embedding.tokens.weight
        losses: Tensor = self.head(hidden, stream, tokens.labels, vectors)
        return losses

    def _keys(self, microbatch: MicroBatch, tokens: IterationTokens) -> Tensor | None:
        if tokens.iteration is None:
            return None
        held = {
            i: tokens_held(microbatch, i, tokens.samples[i].tokens) for i in microbatch.sample_ids
        }
        return dropout_keys(tokens.iteration, microbatch.rows, held, microbatch.row_tokens)

    def _with_angles(
        self, context: AttentionContext, n_tokens: int, like: Tensor
    ) -> AttentionContext:
        positions = context.positions
        if positions is None:
            positions = torch.arange(n_tokens, device=like.device)
        angles = Angles.from_positions(self._shape, positions, like.dtype)
        return replace(context, angles=angles)


STAGE = DecoderStage
