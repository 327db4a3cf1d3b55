"""T5: encoder and decoder, with relative biases and RMS norms."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field

from dynapipe_hpc.architecture.blocks import Maps, block_of, ends, layer
from dynapipe_hpc.architecture.lora import frozen_but_adapters
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Amount, Block, Boundary, Part, Side
from dynapipe_hpc.data.microbatch import Recompute

ENCODER, DECODER = "encoder", "decoder"
# The relative bias that the layers of a side share on a stage.
ENCODER_SIDE, DECODER_SIDE = "encoder_side", "decoder_side"
EMBEDDING_WEIGHT = "embedding.weight"
ENCODER_BIAS, DECODER_BIAS = "encoder_bias.weight", "decoder_bias.weight"


class T5Shape(ModelShape):
    """The [model] table of a t5: encoder and decoder, with relative biases and RMS norms.

    Attributes:
        family: Kind of model.
        n_layers: Number of layers of the encoder.
        n_decoder_layers: Number of layers of the decoder; None means n_layers.
        head_size: Width of one attention head.
        gated: Whether the feed-forward block has a gated GELU (T5 1.1) instead of a ReLU.
        scale_decoder_outputs: Whether the input of a tied head is divided by the square root of
            hidden_size, as in T5 1.0; None means true if the head is tied, else false. It may be
            true only with a tied head.
        n_buckets: Number of buckets of distances, each with its own bias per head; in the
            encoder, each direction has half of the buckets.
        max_distance: Distance beyond which all distances share one bucket.
        dropout: Dropout probability in training, after the embeddings, the projections back to the
            residual stream, the activation function of the feed-forward block and the final norms.
            Attention weights have no dropout.
    """

    has_target_rows: ClassVar[bool] = True

    family: Literal["t5"] = "t5"
    n_decoder_layers: int | None = Field(default=None, ge=1, le=10_000)
    head_size: int = Field(ge=1, le=2**16)
    gated: bool = False
    norm_epsilon: float = Field(default=1e-6, gt=0, le=1)
    tied_head: bool = True
    scale_decoder_outputs: bool | None = None
    n_buckets: int = Field(default=32, ge=4, le=2**16)
    max_distance: int = Field(default=128, ge=1, le=2**24)
    dropout: float = Field(default=0.0, ge=0, le=0.9)

    @property
    def fingerprint(self) -> Mapping[str, int]:
        sizes = {**super().fingerprint, "head_size": self.head_size}
        return {**sizes, "gated": self.gated, "has_dropout": self.dropout > 0}

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "attention.query": ("query",),
            "attention.key_value": ("key", "value"),
            "attention.output": ("attention_output",),
            "feed_forward.inner": ("gate", "up") if self.gated else ("up",),
            "feed_forward.output": ("down",),
        }

    @property
    def layer_counts(self) -> Mapping[str, int]:
        return {ENCODER: self.n_layers, DECODER: self.n_decoder_layers or self.n_layers}

    @property
    def divides_outputs(self) -> bool:
        """Whether the head's input is divided by the square root of `hidden_size`."""
        return self.tied_head and self.scale_decoder_outputs is not False

    @property
    def dropout_rate(self) -> float:
        return self.dropout

    def with_layers(self, n: int) -> Self:
        return self.model_copy(update={"n_layers": n, "n_decoder_layers": None})

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        return {
            EMBEDDING_WEIGHT: (EMBEDDING, HEAD) if self.tied_head else (EMBEDDING,),
            ENCODER_BIAS: (ENCODER_SIDE,),
            DECODER_BIAS: (DECODER_SIDE,),
        }

    def check(self) -> None:
        if self.scale_decoder_outputs and not self.tied_head:
            raise ValueError(
                "scale_decoder_outputs is true, but tied_head is false: only the input of a tied "
                "head is divided; leave scale_decoder_outputs out"
            )
        n_single = self.n_buckets // 2
        if self.max_distance <= n_single:
            raise ValueError(
                f"max_distance ({self.max_distance}) must be more than half of n_buckets "
                f"({self.n_buckets}): {n_single} buckets hold one distance each; raise it to "
                f"{n_single + 1} or more, or lower n_buckets"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layers and relative bias of each side, embedding, head.

        A side's layers share the bias that they add to scores. In the encoder, each row has its own
        bias, as it also masks the row's padding; a micro-batch without padding needs less. The
        final norms of both sides are counted with the head.
        """
        width = self.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = self.attention_size // n_shards, self.ffn_size // n_shards
        normed, output = Amount(stream), Maps(heads, {"attention_output": width})
        attention = block_of(
            self.lora,
            Maps(width, dict.fromkeys(("query", "key", "value"), heads), normed, 2 * heads),
            output,
            vectors=width,
            kept=Amount(2 * stream + 4 * heads),
            attention=Amount(per_pair=4 * heads),
        )
        # Its pairs of tokens are counted with pairs of self-attention, see `Side.TARGETS`.
        crossed = block_of(
            self.lora,
            Maps(width, {"query": heads}, kept=normed),
            Maps(width, dict.fromkeys(("key", "value"), heads), widest=2 * heads, of_source=True),
            output,
            vectors=width,
            kept=Amount(2 * stream + 2 * heads, 2 * heads),
        )
        # A gate keeps both inputs of the product and the product, a ReLU its output only.
        inner_names, n_kept = self.linear_layers["feed_forward.inner"], 3 if self.gated else 1
        fed_forward = block_of(
            self.lora,
            Maps(width, dict.fromkeys(inner_names, inner), normed, len(inner_names) * inner),
            Maps(
                inner, {"down": width}, Amount(inner if self.gated else 0), is_deferrable=self.gated
            ),
            vectors=width,
            kept=Amount(2 * stream + n_kept * inner),
            recomputed_in=(Recompute.FULL,),
        )
        n_heads = self.n_heads // n_shards
        masked = stream if self.dropout else 0
        layer_of = partial(layer, masked=max(masked, inner) if masked else 0)
        n_numbers = self.n_buckets * n_heads

        def bias(side: Side, kept: Amount) -> Part:
            # Every layer's attention keeps the same tensor, which is added to scores. Kernels that
            # fuse attention compute its gradient in full for every layer, with all rows.
            block = Block(n_numbers, largest_weight=n_numbers, kept=kept.times(n_heads))
            term = Amount(per_own_pair=n_heads)
            return Part(side, (block,), gradient_term=term, gradient_sum=block.kept)

        parts = {
            ENCODER: layer_of(Side.INPUTS, width, stream, inner, attention, fed_forward),
            DECODER: layer_of(Side.TARGETS, width, stream, inner, attention, crossed, fed_forward),
            ENCODER_SIDE: bias(Side.INPUTS, kept=Amount(per_own_pair=1)),
            DECODER_SIDE: bias(Side.TARGETS, kept=Amount(per_square=1)),
            **ends(
                width,
                stream,
                self.ids_per_shard(n_shards),
                embedded=Side.LONGER,
                predicted=Side.TARGETS,
                positions=0,
                vectors=2 * width,
                masked=masked,
                masked_head=masked,
            ),
        }
        return frozen_but_adapters(parts, self.lora)

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Numbers of parts; a stage holds the embedding and each bias at most once.

        The embedding is on the stages where inputs enter, where the decoder begins and where a tied
        head is; the relative bias of a side is on every stage with layers of that side.
        """
        n_encoders = sum(i < self.n_layers for i in layers)
        n_decoders = len(layers) - n_encoders
        return {
            ENCODER: n_encoders,
            DECODER: n_decoders,
            ENCODER_SIDE: min(n_encoders, 1),
            DECODER_SIDE: min(n_decoders, 1),
            EMBEDDING: int(first or self.n_layers in layers),
            HEAD: int(last),
        }

    def boundary(self, layers: range) -> Boundary:
        return Boundary.PAIR if layers.stop > self.n_layers else Boundary.ROWS
