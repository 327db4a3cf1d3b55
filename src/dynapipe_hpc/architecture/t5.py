"""T5: encoder and decoder, with relative biases and RMS norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dynapipe_hpc.architecture.adapted import Maps, adapted, frozen_but_adapters
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
N_BUCKETS, MAX_DISTANCE = 32, 128
NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class T5:
    """`Architecture` of a T5.

    A side's layers share what they add to scores. In the encoder that is a tensor with all rows,
    as it also masks their padding; a micro-batch without padding needs less.

    The stages where inputs enter, where the decoder begins and where a tied head is hold a copy of
    the embedding. Every stage with layers of a side holds a copy of that side's
    relative bias. The final norms of both sides are counted with the head.
    """

    sizes: Sizes

    has_target_rows = True
    options: ClassVar[tuple[str, ...]] = (
        "n_decoder_layers",
        "head_size",
        "gated",
        "tied_head",
        "scale_decoder_outputs",
        "n_buckets",
        "max_distance",
        "norm_epsilon",
        "dropout",
    )
    fingerprint = (
        "hidden_size",
        "n_heads",
        "ffn_size",
        "vocab_size",
        "head_size",
        "gated",
        "has_dropout",
    )
    divisible_by_shards = ("n_heads", "ffn_size")

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Linear layers that may have adapters; a gate is one of its own."""
        return {
            "attention.query": ("query",),
            "attention.key_value": ("key", "value"),
            "attention.output": ("attention_output",),
            "feed_forward.inner": ("gate", "up") if self.sizes.gated else ("up",),
            "feed_forward.output": ("down",),
        }

    @property
    def layer_counts(self) -> Mapping[str, int]:
        """Numbers of layers of the encoder and of the decoder."""
        n_encoders = self.sizes.n_layers
        return {ENCODER: n_encoders, DECODER: self.sizes.n_decoder_layers or n_encoders}

    @property
    def norm_epsilon(self) -> float:
        """Number that norms add to the mean square; by default that of the T5."""
        return self.sizes.norm_epsilon or NORM_EPSILON

    @property
    def tied_head(self) -> bool:
        """Whether logits have the embedding's weights; by default, as in T5 1.0."""
        return self.sizes.tied_head is not False

    @property
    def scale_decoder_outputs(self) -> bool:
        """Whether what enters the head is divided by the root of the width; if it is tied, yes."""
        return self.tied_head and self.sizes.scale_decoder_outputs is not False

    @property
    def has_dropout(self) -> bool:
        """Whether layers take the time of dropout, at any rate."""
        return bool(self.sizes.dropout)

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """The embedding, which both sides and a tied head use, and the biases of both sides."""
        return {
            EMBEDDING_WEIGHT: (EMBEDDING, HEAD) if self.tied_head else (EMBEDDING,),
            ENCODER_BIAS: (ENCODER_SIDE,),
            DECODER_BIAS: (DECODER_SIDE,),
        }

    @property
    def n_buckets(self) -> int:
        """Number of ranges of distances; positions so far apart have the same bias."""
        return self.sizes.n_buckets or N_BUCKETS

    @property
    def max_distance(self) -> int:
        """Distance from which on all share a bucket."""
        return self.sizes.max_distance or MAX_DISTANCE

    def check(self) -> None:
        """Refuses settings that are missing or contradict each other."""
        if self.sizes.head_size is None:
            raise ValueError("a t5 needs head_size, the width of one attention head; set it")
        if self.sizes.scale_decoder_outputs and not self.tied_head:
            raise ValueError(
                "scale_decoder_outputs is true, but tied_head false: only what enters a tied head "
                "is divided; leave scale_decoder_outputs out"
            )
        n_single = self.n_buckets // 2
        if self.max_distance <= n_single:
            raise ValueError(
                f"max_distance ({self.max_distance}) must be more than half of n_buckets "
                f"({self.n_buckets}): {n_single} buckets hold one distance each; raise it to "
                f"{n_single + 1} or more, or lower n_buckets"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layers and relative bias of each side, embedding, head."""
        sizes, width = self.sizes, self.sizes.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = sizes.attention_size // n_shards, sizes.ffn_size // n_shards
        normed, output = Amount(stream), Maps(heads, {"attention_output": width})
        attention = adapted(
            self_attention(width, stream, heads, vectors=width, n_joined=2),
            sizes.lora,
            Maps(width, dict.fromkeys(("query", "key", "value"), heads), kept=normed),
            output,
        )
        crossed = adapted(
            cross_attention(width, stream, heads, vectors=width, n_joined=2),
            sizes.lora,
            Maps(width, {"query": heads}, kept=normed),
            Maps(width, dict.fromkeys(("key", "value"), heads), of_source=True),
            output,
        )
        n_kept, n_joined = (3, 2) if sizes.gated else (1, 1)
        fed_forward = adapted(
            feed_forward(width, stream, inner, vectors=width, n_kept=n_kept, n_joined=n_joined),
            sizes.lora,
            Maps(width, dict.fromkeys(self.linear_layers["feed_forward.inner"], inner), normed),
            Maps(
                inner, {"down": width}, Amount(inner if sizes.gated else 0), waits=bool(sizes.gated)
            ),
        )
        n_heads = sizes.n_heads // n_shards
        masked = stream if self.has_dropout else 0
        layer_of = partial(layer, masked=max(masked, inner) if masked else 0)
        bias = partial(relative_bias, heads=n_heads, n_numbers=self.n_buckets * n_heads)
        parts = {
            ENCODER: layer_of(Side.INPUTS, width, stream, inner, attention, fed_forward),
            DECODER: layer_of(Side.TARGETS, width, stream, inner, attention, crossed, fed_forward),
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
                masked=masked,
                masked_head=masked,
            ),
        }
        return frozen_but_adapters(parts, sizes.lora)

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
