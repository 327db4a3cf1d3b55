"""Llama as torch modules: RMS norms, attention of grouped queries, and the layers of one stage."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.llama import LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.gated_feed_forward import GatedFeedForward
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.transformer import TransformerLayer


class GroupedAttention(nn.Module):
    """Self-attention (grouped queries) in which several heads share keys and values.

    A position sees itself and those before it in its row or document. Every shard has its own
    heads of queries and those of keys and values that they share.

    Source:
        Ainslie et al., "GQA", arXiv:2305.13245.
    """

    def __init__(self, shape: LlamaShape, shards: Shards) -> None:
        super().__init__()
        width, has_bias = shape.hidden_size, shape.qkv_bias
        self.head_size = shape.head_width
        heads, sources = shape.attention_size, shape.n_query_groups * shape.head_width
        self.query = ColumnLinear(width, heads, shards, bias=has_bias)
        self.key = ColumnLinear(width, sources, shards, bias=has_bias)
        self.value = ColumnLinear(width, sources, shards, bias=has_bias)
        self.query_norm = HeadNorm(shape) if shape.qk_norm else None
        self.key_norm = HeadNorm(shape) if shape.qk_norm else None
        self.output = RowLinear(heads, width, shards, bias=shape.output_bias)

    def forward(self, hidden: Tensor, stream: ResidualStream, context: AttentionContext) -> Tensor:
        """Maps a tensor of the stream to another one."""
        mapped = stream.map(hidden, self.query, self.key, self.value)
        query, key, value = (each.view(*each.shape[:2], -1, self.head_size) for each in mapped)
        if self.query_norm and self.key_norm:
            query, key = self.query_norm(query, stream), self.key_norm(key, stream)
        output: Tensor = self.output(context.attend(query, key, value), stream)
        return output


class HeadNorm(nn.Module):
    """RMS norm over the width of a head, with learned scales that all heads share (Qwen3)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.head_width))
        self._epsilon = shape.norm_epsilon

    def forward(self, vectors: Tensor, stream: ResidualStream) -> Tensor:
        """Normalises a shard's heads, shape (rows, tokens, heads, head size)."""
        scales = stream.common(self.weight)
        return functional.rms_norm(vectors, scales.shape, scales, self._epsilon)


class LlamaStage(DecoderStage):
    """Pipeline stage of a Llama, whose layers turn queries and keys by their positions."""

    @staticmethod
    def norm_of(shape: ModelShape) -> nn.RMSNorm:
        """RMS norm over the width, computed in float32 at least, with learned scales."""
        return nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)

    @staticmethod
    def n_positions(_: ModelShape) -> int:
        """Zero: rotary positions need no table."""
        return 0

    @staticmethod
    def layer_of(shape: ModelShape, shards: Shards) -> TransformerLayer:
        """A layer of a Llama."""
        assert isinstance(shape, LlamaShape)  # noqa: S101 - types
        return TransformerLayer(
            attention_norm=LlamaStage.norm_of(shape),
            attention=GroupedAttention(shape, shards),
            feed_forward_norm=LlamaStage.norm_of(shape),
            feed_forward=GatedFeedForward(shape, shards, functional.silu),
        )

    def layer_context(
        self, context: AttentionContext, n_tokens: int, hidden: Tensor
    ) -> AttentionContext:
        """The context with angles of positions in documents or rows."""
        assert isinstance(self._shape, LlamaShape)  # noqa: S101 - types
        positions = context.positions
        if positions is None:
            positions = torch.arange(n_tokens, device=hidden.device)
        angles = Angles.from_positions(self._shape, positions, hidden.dtype)
        return replace(context, angles=angles)


STAGE = LlamaStage
