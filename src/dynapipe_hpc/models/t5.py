"""T5 as torch modules: layers of encoder and decoder, and one pipeline stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import DECODER_BIAS, EMBEDDING_WEIGHT, ENCODER_BIAS, T5Shape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.models.attention import attention, attention_in_groups
from dynapipe_hpc.models.batch import Batch, IterationTokens, collate_both_sides
from dynapipe_hpc.models.documents import Documents, LengthGroups, padding_mask
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.head import Head
from dynapipe_hpc.models.initialize import Deviation
from dynapipe_hpc.models.layer import GatedFeedForward, ReluFeedForward, TransformerLayer
from dynapipe_hpc.models.sharding.sharded_linear import (
    ColumnLinear,
    ResidualStream,
    RowLinear,
    TokenEmbedding,
    residual_stream,
)
from dynapipe_hpc.models.sharding.shards import Shards, Split, copy_to_shards


class RelativeBias(nn.Module):
    """A learned number per head and bucket of distances, which all layers of a side share.

    Every shard has the numbers of its own heads.

    Source: Raffel et al., "T5", JMLR 2020, section 2.1.
    """

    def __init__(self, shape: T5Shape, shards: Shards, *, causal: bool) -> None:
        super().__init__()
        self._n_buckets, self._max_distance = shape.n_buckets, shape.max_distance
        self.weight = nn.Parameter(torch.empty(self._n_buckets, shape.n_heads // shards.n_shards))
        self.splits = {"weight": Split(1, 1, shards.shard, shards.n_shards)}
        self._causal = causal

    def forward(self, tokens: int, padding: Tensor | None = None) -> Tensor:
        """Numbers to add to scores, shape (rows or 1, heads, tokens, tokens).

        They are -inf at padding and, on a causal side, at later positions.
        """
        distances = torch.arange(1 - tokens, tokens, device=self.weight.device)
        bucket = buckets(distances, self._n_buckets, self._max_distance, causal=self._causal)
        numbers = self.weight[bucket].t()  # (heads, distances)
        if self._causal:
            numbers = numbers.masked_fill(distances > 0, -math.inf)
        # Row i begins at distance tokens - 1 - i: every row is a window of the same numbers.
        bias = numbers.unfold(-1, tokens, 1).flip(1).unsqueeze(0)
        return bias if padding is None else bias + padding


def buckets(distances: Tensor, n_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """The bucket of every distance, from an attending position to the one attended to.

    Half of the buckets hold one distance each; the rest hold wider and wider ranges. If attention
    is not causal, each direction has half of all buckets.
    """
    n_buckets = n_buckets if causal else n_buckets // 2
    far = (-distances).clamp(min=0) if causal else distances.abs()
    n_single = n_buckets // 2
    # In float32, as in the code that trained T5: rounding decides at the edges of some buckets.
    octaves = torch.log(far.clamp(min=1).float() / n_single) / math.log(max_distance / n_single)
    grouped = n_single + (octaves * (n_buckets - n_single)).long()
    bucket = torch.where(far < n_single, far, grouped.clamp(max=n_buckets - 1))
    return bucket if causal else bucket + n_buckets * (distances > 0)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMasks:
    """Masks for attention within the encoder or decoder, or from the decoder to the encoder.

    `biases`: Numbers added to scores, (rows or 1, heads or 1, tokens or 1, source tokens), minus
    infinity where nothing may be seen; one tensor for padded rows, or one for each group of
    documents. None adds nothing.
    """

    biases: Sequence[Tensor | None]
    groups: LengthGroups | None  # documents of packed rows; None if attention is over complete rows

    @classmethod
    def from_inputs(cls, source: Batch, bias: RelativeBias, dtype: torch.dtype) -> Self:
        """Masks for inputs that attend to inputs: all but padding is seen."""
        if (groups := _groups_of(source)) is None:
            return cls([bias(source.size[1], _padding_mask(source, dtype))], None)
        masks = zip(groups.sizes, groups.padding_masks(dtype), strict=True)
        return cls([bias(size.tokens, padding) for size, padding in masks], groups)

    @classmethod
    def from_targets(cls, batch: Batch, bias: RelativeBias) -> Self:
        """Masks for targets that attend to targets before them; later padding is thus hidden."""
        if (groups := _groups_of(batch)) is None:
            return cls([bias(batch.size[1])], None)
        return cls([bias(size.tokens) for size in groups.sizes], groups)

    @classmethod
    def across(cls, batch: Batch, source: Batch, dtype: torch.dtype) -> Self:
        """Masks for targets that attend to inputs: all but padding is seen.

        Fill of the decoder's row attends to fill of the encoder's row or, without any, to the
        shortest input; its loss has no weight, so this has no effect.
        """
        own, seen = batch.segments, source.segments
        if not isinstance(own, Documents) or not isinstance(seen, Documents):
            return cls([_padding_mask(source, dtype)], None)
        groups = LengthGroups.from_offsets(own.offsets, own.cu_seqlens.device, seen.offsets)
        return cls(groups.padding_masks(dtype), groups)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention to what is seen, see `attention`; scores are not scaled."""
        if self.groups is None:
            (bias,) = self.biases
            return attention(query, key, value, bias=bias, scale=1.0)
        return attention_in_groups(query, key, value, self.groups, biases=self.biases, scale=1.0)


def _groups_of(batch: Batch) -> LengthGroups | None:
    """Documents of a packed row in groups; None for padded rows."""
    return batch.segments.length_groups if isinstance(batch.segments, Documents) else None


def _padding_mask(source: Batch, dtype: torch.dtype) -> Tensor | None:
    if source.lengths is None:
        return None
    return padding_mask(source.lengths, source.size[1], dtype)


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
        if source is None:
            query, both = stream.map(hidden, self.query, self.key_value)
        else:
            (query,) = stream.map(hidden, self.query)
            both = self.key_value(copy_to_shards(source, self._shards))
        query = query.view(*query.shape[:2], self.n_heads, -1).transpose(1, 2)
        both = both.view(*both.shape[:2], 2, self.n_heads, -1)
        key, value = both.permute(2, 0, 3, 1, 4)  # each (rows, heads, source tokens, head size)
        attended = masks.attend(query, key, value)
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2), stream)
        return output


class EncoderLayer(TransformerLayer):
    """A layer of the encoder; its context is `AttentionMasks`."""

    def __init__(self, shape: T5Shape, shards: Shards, **between: nn.Module) -> None:
        gelu = partial(functional.gelu, approximate="tanh")
        super().__init__(
            attention_norm=norm_of(shape),
            attention=Attention(shape, shards),
            feed_forward_norm=norm_of(shape),
            feed_forward=GatedFeedForward(shape, shards, gelu)
            if shape.gated
            else ReluFeedForward(shape, shards),
            **between,
        )


class BothMasks(NamedTuple):
    """Masks of the decoder's attention to targets, and to inputs."""

    masks: AttentionMasks
    cross_masks: AttentionMasks

    @property
    def biases(self) -> Sequence[Tensor | None]:
        return (*self.masks.biases, *self.cross_masks.biases)


class DecoderLayer(EncoderLayer):
    """A layer with cross-attention to the encoder's output between its two halves."""

    cross_attention_norm: nn.Module
    cross_attention: nn.Module

    def __init__(self, shape: T5Shape, shards: Shards) -> None:
        cross_attention = Attention(shape, shards)
        between = {"cross_attention_norm": norm_of(shape), "cross_attention": cross_attention}
        super().__init__(shape, shards, **between)

    def _attended(
        self, stream: ResidualStream, context: BothMasks, hidden: Tensor, *sources: Tensor
    ) -> Tensor:
        hidden = super()._attended(stream, context.masks, hidden)
        normed = self.cross_attention_norm(hidden)
        (encoded,) = sources
        attended: Tensor = self.cross_attention(normed, stream, context.cross_masks, encoded)
        return hidden + attended


class T5Stage(StageOfFamily):
    """Pipeline stage of a T5: consecutive layers, and the parts that belong to them.

    Layers are counted from the encoder's first to the decoder's last. The first stage, the one
    where the decoder begins and the one that has a tied head each hold a copy of the embedding.
    Every stage with layers of a side holds a copy of that side's relative bias. Copies start with
    the same values.
    """

    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        assert isinstance(shape, T5Shape)  # noqa: S101 - types
        n = shape.n_layers
        self._shards = shards
        self._begins_decoder = n in layers
        encoder, decoder = [i for i in layers if i < n], [i - n for i in layers if i >= n]
        has_tied_head = self.is_last and shape.tied_head
        holds_embedding = self.is_first or self._begins_decoder or has_tied_head
        self.embedding = None
        if holds_embedding:
            self.embedding = TokenEmbedding(shape.vocab_size, shape.hidden_size, shards)
        self.encoder_bias = RelativeBias(shape, shards, causal=False) if encoder else None
        self.encoder = nn.ModuleDict({str(i): EncoderLayer(shape, shards) for i in encoder})
        self.encoder_norm = norm_of(shape) if n - 1 in layers else None
        self.decoder_bias = RelativeBias(shape, shards, causal=True) if decoder else None
        self.decoder = nn.ModuleDict({str(i): DecoderLayer(shape, shards) for i in decoder})
        self.decoder_norm = norm_of(shape) if self.is_last else None
        # Vectors of the embedding start with numbers near one, which would make logits large.
        divisor = math.sqrt(shape.hidden_size) if shape.divides_outputs else 1.0
        self.head = Head(shape, shards, divisor=divisor) if self.is_last else None
        self.encoder_input, self.encoder_output = Dropout(), Dropout()
        self.decoder_input, self.decoder_output = Dropout(), Dropout()

    def deviation(self, shape: ModelShape) -> Deviation:
        def deviation_of(name: str, size: torch.Size) -> float:
            if name == EMBEDDING_WEIGHT:
                return 1.0
            if name in (ENCODER_BIAS, DECODER_BIAS):
                return 1 / math.sqrt(shape.hidden_size)
            n_inputs = size[1]
            if name.endswith("query.weight"):
                n_inputs *= shape.attention_size // shape.n_heads  # by which no score is divided
            return 1 / math.sqrt(n_inputs)

        return deviation_of

    def collate(self, microbatch: MicroBatch, tokens: IterationTokens) -> Batch:
        targets = self._begins_decoder or self.is_last
        return collate_both_sides(
            microbatch, tokens, inputs=self.is_first, targets=targets, drops=self.drops
        )

    def run(self, activation: Tensor | None, batch: Batch, recompute: Recompute) -> Tensor:
        source = batch.source
        assert source is not None  # noqa: S101 - types
        stream = residual_stream(self._shards, *source.size, source.keys)
        # Activations of both sides at the start of the stage; None for a side that has not begun.
        encoded, decoded = activation, None
        if activation is not None:
            dimension, n_own = stream.token_dimension, stream.n_own
            if n_others := activation.shape[dimension] - n_own:
                encoded = activation.narrow(dimension, 0, n_own)
                decoded = activation.narrow(dimension, n_own, n_others)
        if encoded is None or self.encoder:
            encoded = self._encoded(encoded, stream, source, recompute)
        if decoded is None and not self._begins_decoder:
            return encoded
        # Done once here: every layer projects it, and would gather it, or copy a strided tensor.
        whole = stream.end(encoded).contiguous() if self.decoder else encoded
        hidden = self._decoded(decoded, whole, batch, recompute)
        return hidden if self.is_last else torch.cat([encoded, hidden], stream.token_dimension)

    def _encoded(
        self, received: Tensor | None, stream: ResidualStream, source: Batch, recompute: Recompute
    ) -> Tensor:
        hidden = received
        if hidden is None:
            assert self.embedding is not None  # noqa: S101 - types
            hidden = self.encoder_input(self.embedding(source.tokens, stream), stream.own_keys)
        if self.encoder_bias is not None:
            masks = AttentionMasks.from_inputs(source, self.encoder_bias, hidden.dtype)
            for layer in self.encoder.values():
                hidden = layer(hidden, stream, masks, recompute)
        if self.encoder_norm is None:
            return hidden
        output: Tensor = self.encoder_output(self.encoder_norm(hidden), stream.own_keys)
        return output

    def _decoded(
        self, received: Tensor | None, encoded: Tensor, batch: Batch, recompute: Recompute
    ) -> Tensor:
        assert batch.source is not None  # noqa: S101 - types
        stream = residual_stream(self._shards, *batch.size, batch.keys)
        hidden = received
        if hidden is None:
            assert self.embedding is not None  # noqa: S101 - types
            hidden = self.decoder_input(self.embedding(batch.tokens, stream), stream.own_keys)
        if self.decoder_bias is not None:
            masks = AttentionMasks.from_targets(batch, self.decoder_bias)
            both = BothMasks(masks, AttentionMasks.across(batch, batch.source, hidden.dtype))
            for layer in self.decoder.values():
                hidden = layer(hidden, stream, both, recompute, encoded)
        if self.decoder_norm is None or self.head is None:
            return hidden
        normed = self.decoder_output(self.decoder_norm(hidden), stream.own_keys)
        vectors = self.embedding and self.embedding.weight
        ids = None if batch.labels is None else batch.labels.ids
        losses: Tensor = self.head(normed, stream, ids, vectors)
        return losses
