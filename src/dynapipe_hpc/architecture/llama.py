"""Llama: decoder-only, with rotary positions, grouped queries, gated feed-forward and RMS norms.

Mistral, Qwen2 and Qwen3 are Llamas with other settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dynapipe_hpc.architecture.adapted import Maps, adapted, frozen_but_adapters
from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.blocks import ends, feed_forward, layer, self_attention
from dynapipe_hpc.architecture.decoder_only import DecoderOnly
from dynapipe_hpc.architecture.part import LAYER, Part, Side
from dynapipe_hpc.architecture.rope_scaling import RopeScaling

ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Llama(DecoderOnly):
    """`Architecture` of a Llama.

    The angles of rotary positions, which the layers of a stage share, are not counted: as many
    numbers per position of a row as a head is wide. Nor are the copies of grouped keys and values
    that attention in float32 needs on GPUs, one for every head of queries.
    """

    options: ClassVar[tuple[str, ...]] = (
        "head_size",
        "norm_epsilon",
        "tied_head",
        "n_kv_heads",
        "rope_theta",
        "rope_scaling",
        "qkv_bias",
        "qk_norm",
    )
    fingerprint = (
        "hidden_size",
        "n_heads",
        "n_kv_heads",
        "head_size",
        "ffn_size",
        "vocab_size",
        "qkv_bias",
        "qk_norm",
    )
    divisible_by_shards = ("n_heads", "n_kv_heads", "ffn_size")
    linear_layers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention.query": ("query",),
        "attention.key": ("key",),
        "attention.value": ("value",),
        "attention.output": ("attention_output",),
        "feed_forward.inner": ("gate", "up"),
        "feed_forward.output": ("down",),
    }

    @property
    def n_kv_heads(self) -> int:
        """Number of heads of keys and values, each for a group of queries' heads."""
        return self.sizes.n_kv_heads or self.sizes.n_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.sizes.attention_size // self.sizes.n_heads

    @property
    def rope_theta(self) -> float:
        """Base of the angles of rotary positions."""
        return self.sizes.rope_theta or ROPE_THETA

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """Scaling of rotary positions; None without."""
        return self.sizes.rope_scaling

    @property
    def qkv_bias(self) -> bool:
        """Whether the maps of queries, keys and values have biases, as in Qwen2."""
        return bool(self.sizes.qkv_bias)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head, as in Qwen3."""
        return bool(self.sizes.qk_norm)

    def check(self) -> None:
        """Refuses heads that cannot be cut out of the width, grouped or turned."""
        sizes = self.sizes
        if sizes.head_size is None and sizes.hidden_size % sizes.n_heads:
            raise ValueError(
                f"hidden_size ({sizes.hidden_size}) must be a multiple of n_heads "
                f"({sizes.n_heads}), or head_size be set"
            )
        if self.head_size % 2:
            raise ValueError(
                f"head_size ({self.head_size}) must be even, as rotary positions turn pairs of "
                "numbers; set it to an even number"
            )
        if sizes.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads ({sizes.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads}): "
                "every head of keys and values is for as many heads of queries"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layer, embedding, head."""
        sizes, width = self.sizes, self.sizes.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = sizes.attention_size // n_shards, sizes.ffn_size // n_shards
        sources = self.n_kv_heads * self.head_size // n_shards
        biases = heads + 2 * sources if self.qkv_bias else 0
        norms = 2 * self.head_size if self.qk_norm else 0
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
            sizes.lora,
            Maps(width, {"query": heads, "key": sources, "value": sources}, Amount(stream)),
            Maps(heads, {"attention_output": width}),
        )
        fed_forward = adapted(
            feed_forward(width, stream, inner, vectors=width, n_kept=3, n_joined=2),
            sizes.lora,
            Maps(width, {"gate": inner, "up": inner}, Amount(stream)),
            Maps(inner, {"down": width}, Amount(inner)),
        )
        parts = {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward),
            **ends(
                width,
                stream,
                sizes.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=0,
                vectors=width,
            ),
        }
        return frozen_but_adapters(parts, sizes.lora)
