"""What the layers of a model have to do, from their sizes alone."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes
from dynapipe_hpc.planner.cost.stage_parts import (
    DECODER,
    EMBEDDING,
    ENCODER,
    HEAD,
    LAYER,
    parameters_of,
)

LOGIT_BYTES = 4  # the loss is computed in float32 whatever the activations are


class Tokens(NamedTuple):
    """What layers of one kind are given, padding included. Arrays of shape (n_microbatches,).

    Attributes:
        own: Tokens that pass through them.
        source: Tokens of the other side, to which their own attend as well.
        pairs: Pairs of an own token and one that it attends to.
    """

    own: FloatArray
    source: FloatArray
    pairs: FloatArray


def tokens_of(kind: str, shapes: Shapes) -> Tokens:
    """For the layers of a kind."""
    rows, inputs, targets = (np.asarray(sizes, dtype=np.float64) for sizes in shapes)
    nothing = np.zeros_like(rows)
    if kind == DECODER:
        return Tokens(rows * targets, rows * inputs, rows * targets * (targets + inputs))
    if kind == EMBEDDING:  # of either side: the longer stands for both
        return Tokens(rows * np.maximum(inputs, targets), nothing, nothing)
    if kind == HEAD:
        return Tokens(rows * np.where(targets > 0, targets, inputs), nothing, nothing)
    return Tokens(rows * inputs, nothing, rows * inputs**2)


class Amount(NamedTuple):
    """Something that grows with `Tokens`, by the one, the other and their pairs."""

    per_own: float = 0
    per_source: float = 0
    per_pair: float = 0

    def of(self, tokens: Tokens) -> FloatArray:
        """Shape (n_microbatches,)."""
        parts = [n * each for n, each in zip(tokens, self, strict=True)]
        total: FloatArray = np.sum(parts, axis=0)
        return total


NOTHING = Amount()


def _sum(*amounts: Amount) -> Amount:
    return Amount(*map(sum, zip(*amounts, strict=True)))


def _times(factor: float, amount: Amount) -> Amount:
    return Amount(*(factor * each for each in amount))


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """What one layer of a kind needs.

    Attributes:
        read_weight_bytes: Of its weights, what every pass reads.
        linear_flops: Of the forward pass, in maps with weights.
        attention_flops: Of the forward pass, in attention itself.
        moved_bytes: Activations that the forward pass writes and reads.
        summed_bytes: Tensors that each direction adds up over shards.
        stored_bytes: Kept for the backward pass.
        transient_bytes: On top while the forward pass runs.
        repeated_flops: Of the forward pass, what the backward pass computes again.
        repeated_bytes: What it keeps of that until it needs it.
    """

    read_weight_bytes: int
    linear_flops: Amount
    attention_flops: Amount
    moved_bytes: Amount
    summed_bytes: Amount
    stored_bytes: Amount
    transient_bytes: Amount
    repeated_flops: Amount = NOTHING
    repeated_bytes: Amount = NOTHING


def layer_estimates(
    shape: ModelShape,
    element_bytes: int,
    n_shards: int = 1,
    recompute: Recompute = Recompute.NONE,
) -> dict[str, LayerEstimate]:
    """Of one shard, by kind, with attention fused: no matrix of scores is kept.

    Args:
        shape: The model.
        element_bytes: Size of one number of an activation or weight.
        n_shards: Ranks over which heads, inner widths and the vocabulary are cut.
        recompute: What backward passes compute again; of embedding and head, nothing.
    """
    weights = {kind: n * element_bytes for kind, n in parameters_of(shape, n_shards).items()}
    attention, feed_forward = _attention(shape, n_shards), _feed_forward(shape, n_shards)
    layers = {LAYER: (attention, feed_forward)}
    if shape.is_encoder_decoder:
        both = _both(attention, _cross_attention(shape, n_shards))
        layers = {ENCODER: (attention, feed_forward), DECODER: (both, feed_forward)}
    estimate = _Estimator(shape, element_bytes, n_shards, weights)
    return {
        **{kind: estimate.layer(kind, *halves, recompute) for kind, halves in layers.items()},
        EMBEDDING: estimate.embedding(),
        HEAD: estimate.head(),
    }


class _Half(NamedTuple):
    """Attention or feed-forward of a layer, each with its norm.

    Attributes:
        linear_flops: As of a layer.
        attention_flops: As of a layer.
        kept: Numbers that its backward pass needs.
        n_sums: Tensors that it adds up over shards.
    """

    linear_flops: Amount
    attention_flops: Amount
    kept: Amount
    n_sums: int


def _attention(shape: ModelShape, n_shards: int) -> _Half:
    h, heads = shape.hidden_size, shape.attention_size // n_shards
    return _Half(Amount(8 * h * heads), Amount(0, 0, 4 * heads), Amount(2 * h + 4 * heads), 1)


def _cross_attention(shape: ModelShape, n_shards: int) -> _Half:
    """Keys and values are of the source; its pairs count with those of the decoder itself."""
    h, heads = shape.hidden_size, shape.attention_size // n_shards
    flops = Amount(4 * h * heads, 4 * h * heads)
    return _Half(flops, NOTHING, Amount(2 * h + 2 * heads, 2 * heads), 1)


def _feed_forward(shape: ModelShape, n_shards: int) -> _Half:
    h, inner = shape.hidden_size, shape.ffn_size // n_shards
    return _Half(Amount(4 * h * inner), NOTHING, Amount(2 * h + 2 * inner), 1)


def _both(first: _Half, second: _Half) -> _Half:
    linear, attention, kept = (_sum(*pair) for pair in zip(first[:3], second[:3], strict=True))
    return _Half(linear, attention, kept, first.n_sums + second.n_sums)


class _Estimator(NamedTuple):
    """Estimates of the layers of one model."""

    shape: ModelShape
    element_bytes: int
    n_shards: int
    weights: dict[str, int]

    def layer(
        self, kind: str, attention: _Half, feed_forward: _Half, recompute: Recompute
    ) -> LayerEstimate:
        """One that ends with feed-forward."""
        h, inner, size = self.shape.hidden_size, self.shape.ffn_size, self.element_bytes
        whole = _both(attention, feed_forward)
        repeated = {
            Recompute.NONE: _Half(NOTHING, NOTHING, NOTHING, 0),
            Recompute.SELECTIVE: attention,
            Recompute.FULL: whole,
        }[recompute]
        kept_input = NOTHING if recompute is Recompute.NONE else Amount(h)
        kept = _sum(whole.kept, _times(-1, repeated.kept), kept_input)
        transient = Amount(h + inner // self.n_shards)
        return LayerEstimate(
            read_weight_bytes=self.weights[kind],
            linear_flops=whole.linear_flops,
            attention_flops=whole.attention_flops,
            moved_bytes=_times(size, _sum(whole.kept, transient)),
            summed_bytes=self._summed(whole.n_sums),
            stored_bytes=_times(size, kept),
            transient_bytes=_times(size, transient),
            repeated_flops=_sum(repeated.linear_flops, repeated.attention_flops),
            repeated_bytes=_times(size, repeated.kept),
        )

    def embedding(self) -> LayerEstimate:
        """Which looks up rows of its weights and keeps nothing."""
        h = self.shape.hidden_size
        return LayerEstimate(
            read_weight_bytes=0,
            linear_flops=Amount(h),
            attention_flops=NOTHING,
            moved_bytes=Amount(self.element_bytes * h),
            summed_bytes=self._summed(1),
            stored_bytes=NOTHING,
            transient_bytes=Amount(self.element_bytes * h),
        )

    def head(self) -> LayerEstimate:
        """With the loss."""
        h, vocabulary = self.shape.hidden_size, self.shape.ids_per_shard(self.n_shards)
        stored, logits = Amount(self.element_bytes * 2 * h), Amount(LOGIT_BYTES * vocabulary)
        return LayerEstimate(
            read_weight_bytes=self.weights[HEAD],
            linear_flops=Amount(2 * h * vocabulary),
            attention_flops=NOTHING,
            moved_bytes=_sum(stored, logits, logits),
            summed_bytes=self._summed(1),
            stored_bytes=_sum(stored, logits),
            transient_bytes=logits,
        )

    def _summed(self, n_sums: int) -> Amount:
        is_cut = self.n_shards > 1
        return Amount(n_sums * self.element_bytes * self.shape.hidden_size if is_cut else 0)
