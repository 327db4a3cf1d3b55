"""T5: encoder and decoder, with a relative bias, root-mean-square norms and tied logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dynapipe_hpc.architecture.blocks import (
    cross_attention,
    ends,
    feed_forward,
    layer,
    self_attention,
)
from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Block, Part, Side
from dynapipe_hpc.architecture.sizes import Sizes

ENCODER, DECODER = "encoder", "decoder"
# What the layers of a side share on a stage: its relative bias.
ENCODER_SIDE, DECODER_SIDE = "encoder_side", "decoder_side"
EMBEDDING_WEIGHT, ENCODER_BIAS, DECODER_BIAS = (
    "embedding.weight",
    "encoder_bias.weight",
    "decoder_bias.weight",
)
N_BUCKETS = 32  # of distances, which share a number of a relative bias


@dataclass(frozen=True, slots=True)
class T5:
    """The `Architecture` of a T5 of some sizes.

    The embedding is where inputs enter, where the decoder begins, and at the head; the relative
    bias of a side is wherever layers of that side are. With the head the final norms of both
    sides are counted.
    """

    sizes: Sizes

    layer_kinds = (ENCODER, DECODER)
    has_target_rows = True
    tied: ClassVar[Mapping[str, tuple[str, ...]]] = {
        EMBEDDING_WEIGHT: (EMBEDDING, HEAD),
        ENCODER_BIAS: (ENCODER_SIDE,),
        DECODER_BIAS: (DECODER_SIDE,),
    }
    fingerprint = ("hidden_size", "n_heads", "ffn_size", "vocab_size", "head_size")
    divisible_by_shards = ("n_heads", "ffn_size")

    def check(self) -> None:
        """Refuses heads without a width."""
        if self.sizes.head_size is None:
            raise ValueError("a t5 needs head_size, the width of one attention head; set it")

    def parts(self, n_shards: int = 1) -> Mapping[str, Part]:
        """Layers of both sides, what those of a side share, embedding, head."""
        sizes, width = self.sizes, self.sizes.hidden_size
        heads, inner = sizes.attention_size // n_shards, sizes.ffn_size // n_shards
        attention = self_attention(width, heads, vectors=width)
        crossed = cross_attention(width, heads, vectors=width)
        fed_forward = feed_forward(width, inner, vectors=width, n_kept=1)
        bias = Block(N_BUCKETS * sizes.n_heads // n_shards)
        return {
            ENCODER: layer(Side.INPUTS, width, inner, attention, fed_forward),
            DECODER: layer(Side.TARGETS, width, inner, attention, crossed, fed_forward),
            ENCODER_SIDE: Part(Side.INPUTS, (bias,)),
            DECODER_SIDE: Part(Side.TARGETS, (bias,)),
            **ends(
                width,
                sizes.ids_per_shard(n_shards),
                embedded=Side.LONGER,
                predicted=Side.TARGETS,
                positions=0,
                vectors=2 * width,
            ),
        }

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Layers by side; embedding and biases as the class says, once per stage each."""
        n_encoders = sum(i < self.sizes.n_layers for i in layers)
        n_decoders = len(layers) - n_encoders
        return {
            ENCODER: n_encoders,
            DECODER: n_decoders,
            ENCODER_SIDE: min(n_encoders, 1),
            DECODER_SIDE: min(n_decoders, 1),
            EMBEDDING: int(first or self.sizes.n_layers in layers),
            HEAD: int(last),
        }

    def boundary(self, layers: range) -> Boundary:
        """The encoder's activation, up to its output; from the first layer of the decoder both."""
        return Boundary.PAIR if layers.stop > self.sizes.n_layers else Boundary.ROWS
