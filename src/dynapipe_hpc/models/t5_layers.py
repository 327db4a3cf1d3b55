"""Layers of a T5: attention, feed-forward blocks, encoder and decoder layers."""

from functools import partial
from typing import assert_never

from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention_masks import AttentionMasks
from dynapipe_hpc.models.deferred_weights import deferring
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.gated_feed_forward import GatedFeedForward
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards, copy_to_shards


def norm_of(shape: ModelShape) -> nn.RMSNorm:
    """RMS norm: scales each position to a root mean square of 1, times learned scales."""
    return nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)


class Attention(nn.Module):
    """Multi-head attention to the same or another sequence; every shard has its own heads.

    Scores are not divided by the root of the head size: weights of queries start smaller instead.
    """

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.n_heads = shape.n_heads // shards.n_shards
        self._shards = shards
        width, inner = shape.hidden_size, shape.attention_size
        self.query = ColumnLinear(width, inner, shards, bias=False)
        self.key_value = ColumnLinear(width, 2 * inner, shards, n_blocks=2, bias=False)
        self.output = RowLinear(inner, width, shards, bias=False)

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        masks: AttentionMasks,
        source: Tensor | None = None,
    ) -> Tensor:
        """Maps a tensor of the stream to another one.

        Args:
            hidden: Sequence that attends.
            stream: Stream of the sequence that attends.
            masks: What its positions see.
            source: Sequence that is attended to, (rows, source tokens, width), the same on all
                shards; None for the one that attends.
        """
        if source is None:
            query, both = stream.map(hidden, self.query, self.key_value)
        else:
            (query,) = stream.map(hidden, self.query)
            both = self.key_value(copy_to_shards(source, self._shards))
        query = query.view(*query.shape[:2], self.n_heads, -1).transpose(1, 2)
        both = both.view(*both.shape[:2], 2, self.n_heads, -1)
        key, value = both.permute(2, 0, 3, 1, 4)  # each (rows, heads, source tokens, head size)
        mixed = masks.attend(query, key, value)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2), stream)
        return output


class EncoderLayer(nn.Module):
    """Pre-norm layer: self-attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: T5Shape, shards: Shards) -> None:
        super().__init__()
        self.attention_norm = norm_of(shape)
        self.attention = Attention(shape, shards)
        self.feed_forward_norm = norm_of(shape)
        self.feed_forward = feed_forward_of(shape, shards)

    def forward(
        self, hidden: Tensor, stream: ResidualStream, masks: AttentionMasks, recompute: Recompute
    ) -> Tensor:
        """Maps a tensor of the stream to another one, whose positions see what `masks` says.

        Backward recomputes the layer from its input (full), or attention with its projections and
        norm (selective), as in a GPT.
        """
        match recompute:
            case Recompute.NONE:
                return self._whole(stream, masks, hidden)
            case Recompute.SELECTIVE:
                attend = partial(self._attended, stream, masks)
                attended = recomputed(attend, hidden, beside=masks.biases)
                return self._fed_forward(stream, attended)
            case Recompute.FULL:
                return recomputed(partial(self._whole, stream, masks), hidden, beside=masks.biases)
            case _:
                assert_never(recompute)

    def _whole(self, stream: ResidualStream, masks: AttentionMasks, hidden: Tensor) -> Tensor:
        return self._fed_forward(stream, self._attended(stream, masks, hidden))

    def _attended(self, stream: ResidualStream, masks: AttentionMasks, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.attention(self.attention_norm(hidden), stream, masks)
        return output

    def _fed_forward(self, stream: ResidualStream, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden), stream)
        return output


class DecoderLayer(nn.Module):
    """An `EncoderLayer` with cross-attention to the encoder's output between its two halves."""

    def __init__(self, shape: T5Shape, shards: Shards) -> None:
        super().__init__()
        self.attention_norm = norm_of(shape)
        self.attention = Attention(shape, shards)
        self.cross_attention_norm = norm_of(shape)
        self.cross_attention = Attention(shape, shards)
        self.feed_forward_norm = norm_of(shape)
        self.feed_forward = feed_forward_of(shape, shards)

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        encoded: Tensor,
        masks: AttentionMasks,
        *,
        cross_masks: AttentionMasks,
        recompute: Recompute,
    ) -> Tensor:
        """Maps a tensor of the stream to another one."""
        both_masks, biases = (masks, cross_masks), (*masks.biases, *cross_masks.biases)
        match recompute:
            case Recompute.NONE:
                return self._whole(stream, both_masks, hidden, encoded)
            case Recompute.SELECTIVE:
                attend = partial(self._attended, stream, both_masks)
                attended = recomputed(attend, hidden, encoded, beside=biases)
                return self._fed_forward(stream, attended)
            case Recompute.FULL:
                run = partial(self._whole, stream, both_masks)
                return recomputed(run, hidden, encoded, beside=biases)
            case _:
                assert_never(recompute)

    def _whole(
        self,
        stream: ResidualStream,
        both_masks: tuple[AttentionMasks, AttentionMasks],
        hidden: Tensor,
        encoded: Tensor,
    ) -> Tensor:
        return self._fed_forward(stream, self._attended(stream, both_masks, hidden, encoded))

    def _attended(
        self,
        stream: ResidualStream,
        both_masks: tuple[AttentionMasks, AttentionMasks],
        hidden: Tensor,
        encoded: Tensor,
    ) -> Tensor:
        masks, cross_masks = both_masks
        hidden = hidden + self.attention(self.attention_norm(hidden), stream, masks)
        normed = self.cross_attention_norm(hidden)
        output: Tensor = hidden + self.cross_attention(normed, stream, cross_masks, encoded)
        return output

    def _fed_forward(self, stream: ResidualStream, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden), stream)
        return output


class ReluFeedForward(nn.Module):
    """Feed-forward block: two linear maps with a ReLU between; shards divide the inner width."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.inner = ColumnLinear(shape.hidden_size, shape.ffn_size, shards, bias=False)
        self.output = RowLinear(shape.ffn_size, shape.hidden_size, shards, bias=False)
        self.dropout = Dropout()
        self._first_column = shards.shard * (shape.ffn_size // shards.n_shards)

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (inner,) = stream.map(hidden, self.inner)
        # What the function drops is zero before it, too, so that nothing more is kept.
        inner = self.dropout(inner, stream.keys, self._first_column)
        # A ReLU keeps only its output. Beside it, the gradient that `inner` defers would be more
        # than the forward pass has kept, so the output's weights do not wait.
        with deferring(None):
            output: Tensor = self.output(functional.relu(inner), stream)
        return output


def feed_forward_of(shape: T5Shape, shards: Shards) -> ReluFeedForward | GatedFeedForward:
    """The feed-forward block of a model's layers."""
    if not shape.gated:
        return ReluFeedForward(shape, shards)
    return GatedFeedForward(shape, shards, partial(functional.gelu, approximate="tanh"))
