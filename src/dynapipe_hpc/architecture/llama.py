"""Llama: decoder-only, with rotary positions, grouped queries, gated feed-forward and RMS norms.

Mistral, Qwen2 and Qwen3 are Llamas with other settings.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from dynapipe_hpc.architecture.blocks import ends, feed_forward, layer, self_attention
from dynapipe_hpc.architecture.decoder_only import DecoderOnly
from dynapipe_hpc.architecture.lora import Maps, adapted, frozen_but_adapters
from dynapipe_hpc.architecture.part import LAYER, Amount, Part, Side
from dynapipe_hpc.architecture.rope_scaling import AnyRopeScaling


class LlamaShape(DecoderOnly):
    """The [model] table of a llama, and of what is one with other settings: Mistral, Qwen2, Qwen3.

    Attributes:
        family: Kind of model.
        n_kv_heads: Number of heads of keys and values, each shared by equally many heads of queries
            (grouped queries); None for as many as heads of queries.
        rope_theta: Base of the angles of rotary positions.
        rope_scaling: Scaling of rotary positions; None without.
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
    def fingerprint(self) -> Mapping[str, int]:
        """Sizes on which costs of a part depend."""
        return {
            "hidden_size": self.hidden_size,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_query_groups,
            "head_size": self.head_width,
            "ffn_size": self.ffn_size,
            "vocab_size": self.vocab_size,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            # Only where there is one, so that tables from before it was known are read.
            **({"output_bias": True} if self.output_bias else {}),
        }

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Linear layers that may have adapters; a gate is one of its own."""
        return {
            "attention.query": ("query",),
            "attention.key": ("key",),
            "attention.value": ("value",),
            "attention.output": ("attention_output",),
            "feed_forward.inner": ("gate", "up"),
            "feed_forward.output": ("down",),
        }

    @property
    def n_query_groups(self) -> int:
        """Number of heads of keys and values, each for a group of queries' heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def cache_width(self) -> int:
        """Width of all heads of keys and values, twice."""
        return 2 * self.n_query_groups * self.head_width

    @property
    def spared_width(self) -> int:
        """All of them, as queries are a tensor of their own."""
        return self.cache_width

    def check(self) -> None:
        """Refuses heads that cannot be cut out of the width, grouped or turned."""
        if self.head_size is None and self.hidden_size % self.n_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of n_heads "
                f"({self.n_heads}), or head_size be set"
            )
        if self.head_width % 2:
            raise ValueError(
                f"head_size ({self.head_width}) must be even, as rotary positions turn pairs of "
                "numbers; set it to an even number"
            )
        if self.n_heads % self.n_query_groups:
            raise ValueError(
                f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads "
                f"({self.n_query_groups}): every head of keys and values is for as many heads of "
                "queries"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layer, embedding, head.

        The angles of rotary positions, which the layers of a stage share, are not counted: as many
        numbers per position of a row as a head is wide. Nor are the copies of grouped keys and
        values that attention in float32 needs on GPUs, one for every head of queries.
        """
        width = self.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = self.attention_size // n_shards, self.ffn_size // n_shards
        sources = self.n_query_groups * self.head_width // n_shards
        biases = heads + 2 * sources if self.qkv_bias else 0
        biases += width if self.output_bias else 0
        norms = 2 * self.head_width if self.qk_norm else 0
        attention = adapted(
            self_attention(
                width,
                stream,
                heads,
                vectors=width + biases + norms,
                n_joined=1,
                sources=sources,
                is_normed=self.qk_norm,
            ),
            self.lora,
            Maps(width, {"query": heads, "key": sources, "value": sources}, Amount(stream)),
            Maps(heads, {"attention_output": width}),
        )
        fed_forward = adapted(
            feed_forward(width, stream, inner, vectors=width, n_kept=3, n_joined=2),
            self.lora,
            Maps(width, {"gate": inner, "up": inner}, Amount(stream)),
            Maps(inner, {"down": width}, Amount(inner)),
        )
        parts = {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward),
            **ends(
                width,
                stream,
                self.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=0,
                vectors=width,
            ),
        }
        return frozen_but_adapters(parts, self.lora)
