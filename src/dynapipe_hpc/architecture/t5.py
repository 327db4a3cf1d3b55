"""T5: encoder and decoder, with relative biases, RMS norms and a head tied to the embedding."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.blocks import (
    cross_attention,
    ends,
    feed_forward,
    layer,
    relative_bias,
    self_attention,
)
from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Part, Side
from dynapipe_hpc.architecture.sizes import Sizes

ENCODER, DECODER = "encoder", "decoder"
# The relative bias that the layers of a side share on a stage.
ENCODER_SIDE, DECODER_SIDE = "encoder_side", "decoder_side"
EMBEDDING_WEIGHT, ENCODER_BIAS, DECODER_BIAS = (
    "embedding.weight",
    "encoder_bias.weight",
    "decoder_bias.weight",
)
N_BUCKETS = 32  # ranges of distances; those in a bucket have the same bias


@dataclass(frozen=True, slots=True)
class T5:
    """`Architecture` of a T5.

    A side's layers share what they add to scores. In the encoder that is a tensor with all rows,
    as it also masks their padding; a micro-batch without padding needs less.

    The stages where inputs enter, where the decoder begins and where the head is hold a copy of
    the embedding. Every stage with layers of a side holds a copy of that side's relative bias. The
    final norms of both sides are counted with the head.
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
        """Refuses a T5 without `head_size`."""
        if self.sizes.head_size is None:
            raise ValueError("a t5 needs head_size, the width of one attention head; set it")

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layers and relative bias of each side, embedding, head."""
        sizes, width = self.sizes, self.sizes.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = sizes.attention_size // n_shards, sizes.ffn_size // n_shards
        attention = self_attention(width, stream, heads, vectors=width, n_joined=2)
        crossed = cross_attention(width, stream, heads, vectors=width, n_joined=2)
        fed_forward = feed_forward(width, stream, inner, vectors=width, n_kept=1)
        n_heads = sizes.n_heads // n_shards
        bias = partial(relative_bias, heads=n_heads, n_numbers=N_BUCKETS * n_heads)
        return {
            ENCODER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward),
            DECODER: layer(Side.TARGETS, width, stream, inner, attention, crossed, fed_forward),
            ENCODER_SIDE: bias(Side.INPUTS, kept=Amount(per_own_pair=1)),
            DECODER_SIDE: bias(Side.TARGETS, kept=Amount(per_square=1)),
            **ends(
                width,
                stream,
                sizes.ids_per_shard(n_shards),
                embedded=Side.LONGER,
                predicted=Side.TARGETS,
                positions=0,
                vectors=2 * width,
            ),
        }

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Numbers of parts; a stage holds the embedding and each bias once at most."""
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
        """`Boundary.ROWS` within the encoder; `Boundary.PAIR` from the first decoder layer on."""
        return Boundary.PAIR if layers.stop > self.sizes.n_layers else Boundary.ROWS
