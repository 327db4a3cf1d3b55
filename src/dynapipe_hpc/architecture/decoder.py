"""Decoder-only models: GPT and Llama are presets of one decoder, whose layers have settings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from dynapipe_hpc.architecture.blocks import Maps, block_of, ends, layer
from dynapipe_hpc.architecture.lora import frozen_but_adapters
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Amount, Boundary, Part, Side
from dynapipe_hpc.architecture.rope_scaling import AnyRopeScaling, RopeScaling
from dynapipe_hpc.data.microbatch import Recompute

VECTORS = "embedding.tokens.weight"


class DecoderOnly(ModelShape, ABC):
    """Sizes and parts that all decoder-only models have in common."""

    @property
    def layer_counts(self) -> Mapping[str, int]:
        return {LAYER: self.n_layers}

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        return {VECTORS: (EMBEDDING, HEAD)} if self.tied_head else {}

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        return {LAYER: len(layers), EMBEDDING: int(first), HEAD: int(last)}

    def boundary(self, layers: range) -> Boundary:  # noqa: ARG002 - the same from every stage
        return Boundary.ROWS


class LayerSettings(NamedTuple):
    """Settings in which decoders of this package differ; the defaults are those of a Llama."""

    n_kv_heads: int  # heads of keys and values, each for a group of query heads
    has_layer_norms: bool = False  # layer norms, with scales and shifts, and not RMS norms
    n_positions: int = 0  # of the table of learned positions; 0 where queries and keys are rotated
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    is_gated: bool = True  # whether the feed-forward block has a gate; if not, a GELU alone
    is_joined: bool = False  # whether one linear map makes queries, keys and values
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False  # whether queries and keys are normalised head by head


class DecoderShape(DecoderOnly, ABC):
    """A decoder whose layers are modules of this package."""

    @property
    @abstractmethod
    def layer_settings(self) -> LayerSettings:
        """Settings of the layers, which the family and the keys of its table choose."""

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        settings = self.layer_settings
        names = ("query_key_value",) if settings.is_joined else ("query", "key", "value")
        return {
            **{f"attention.{name}": (name,) for name in names},
            "attention.output": ("attention_output",),
            "feed_forward.inner": ("gate", "up") if settings.is_gated else ("up",),
            "feed_forward.output": ("down",),
        }

    @property
    def cache_width(self) -> int:
        return 2 * self.layer_settings.n_kv_heads * self.head_width

    @property
    def spared_width(self) -> int:
        return 0 if self.layer_settings.is_joined else self.cache_width

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layer, embedding, head.

        The angles of rotary positions, which the layers of a stage share, are not counted: one head
        width of numbers per position of a row. Nor are the copies of grouped keys and values that
        attention in float32 needs on GPUs, one for every query head.
        """
        settings, width, lora = self.layer_settings, self.hidden_size, self.lora
        stream = -(-width // n_stream_shards)
        heads, inner = self.attention_size // n_shards, self.ffn_size // n_shards
        sources = settings.n_kv_heads * self.head_width // n_shards
        norm = width * (2 if settings.has_layer_norms else 1)
        vectors = norm
        vectors += heads + 2 * sources if settings.qkv_bias else 0
        vectors += width if settings.output_bias else 0
        vectors += 2 * self.head_width if settings.qk_norm else 0
        projections = {"query": heads, "key": sources, "value": sources}
        if settings.is_joined:
            projections = {"query_key_value": heads + 2 * sources}
        inner_names = self.linear_layers["feed_forward.inner"]
        masked = stream if self.dropout_rate else 0
        attention = block_of(
            lora,
            Maps(width, projections, kept=Amount(stream)),
            Maps(heads, {"attention_output": width}),
            vectors=vectors,
            kept=Amount(2 * stream + (3 if settings.qk_norm else 2) * (heads + sources)),
            attention=Amount(per_pair=4 * heads),
        )
        n_inner = len(inner_names)
        fed_forward = block_of(
            lora,
            Maps(width, dict.fromkeys(inner_names, inner), Amount(stream), n_inner * inner),
            Maps(inner, {"down": width}, kept=Amount(inner)),
            vectors=norm + (inner + width if settings.ffn_bias else 0),
            kept=Amount(2 * stream + (n_inner + 1) * inner),
            recomputed_in=(Recompute.FULL,),
        )
        parts = {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward, masked=masked),
            **ends(
                width,
                stream,
                self.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=settings.n_positions,
                vectors=norm,
                masked=masked,
            ),
        }
        return frozen_but_adapters(parts, lora)


class GptShape(DecoderShape):
    """The [model] table of a gpt: learned positions, biases and layer norms, as in GPT-2.

    Attributes:
        family: Kind of model.
        max_tokens: Maximum length of a row in tokens, and size of the table of positions.
        dropout: Dropout probability in training, after the embeddings and after the projections
            back to the residual stream. Attention weights have no dropout.
    """

    family: Literal["gpt"] = "gpt"
    dropout: float = Field(default=0.0, ge=0, le=0.9)

    @property
    def layer_settings(self) -> LayerSettings:
        return LayerSettings(
            n_kv_heads=self.n_heads,
            has_layer_norms=True,
            n_positions=self.max_tokens,
            is_gated=False,
            is_joined=True,
            qkv_bias=True,
            output_bias=True,
            ffn_bias=True,
        )

    @property
    def fingerprint(self) -> Mapping[str, int]:
        return {**super().fingerprint, "has_dropout": self.dropout > 0}

    @property
    def dropout_rate(self) -> float:
        return self.dropout

    def check(self) -> None:
        if self.hidden_size % self.n_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of n_heads ({self.n_heads})"
            )
        if self.attention_size != self.hidden_size:
            raise ValueError(
                f"in a gpt, n_heads ({self.n_heads}) x head_size ({self.head_size}) must be "
                f"hidden_size ({self.hidden_size}); leave head_size out"
            )


class LlamaShape(DecoderShape):
    """The [model] table of a llama or of its variants with other settings: Mistral, Qwen2, Qwen3.

    It has rotary positions, grouped queries, gated feed-forward and RMS norms.

    Attributes:
        family: Kind of model.
        n_kv_heads: Number of heads of keys and values, each shared by equally many query heads
            (grouped queries); None means n_heads.
        rope_theta: Base of the angles of rotary positions.
        rope_scaling: Scaling of rotary positions; None without scaling.
        qkv_bias: Whether the projections to queries, keys and values have biases, as in Qwen2.
        output_bias: Whether the output projection of attention has a bias.
        qk_norm: Whether queries and keys are normalised head by head, as in Qwen3.
    """

    divisible_by_shards: ClassVar[tuple[str, ...]] = ("n_heads", "n_kv_heads", "ffn_size")

    family: Literal["llama"] = "llama"
    n_kv_heads: int | None = Field(default=None, ge=1, le=2**16)
    rope_theta: float = Field(default=10_000.0, gt=1, le=1e12)
    rope_scaling: AnyRopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_settings(self) -> LayerSettings:
        return LayerSettings(
            n_kv_heads=self.n_kv_heads or self.n_heads,
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
        )

    @property
    def fingerprint(self) -> Mapping[str, int]:
        return {
            **super().fingerprint,
            "n_kv_heads": self.layer_settings.n_kv_heads,
            "head_size": self.head_width,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            # Only if true, so that cost tables from before this key can still be used.
            **({"output_bias": True} if self.output_bias else {}),
        }

    def check(self) -> None:
        if self.head_size is None and self.hidden_size % self.n_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of n_heads "
                f"({self.n_heads}); or set head_size"
            )
        if self.head_width % 2:
            raise ValueError(
                f"head_size ({self.head_width}) must be even, because rotary positions rotate "
                "pairs of numbers; set it to an even number"
            )
        if self.n_heads % (n_kv_heads := self.layer_settings.n_kv_heads):
            raise ValueError(
                f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({n_kv_heads}): every "
                "head of keys and values serves equally many heads of queries"
            )
