"""GPT: decoder-only, with learned positions, biases and layer norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dynapipe_hpc.architecture.adapted import Maps, adapted, frozen_but_adapters
from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.blocks import ends, feed_forward, layer, self_attention
from dynapipe_hpc.architecture.decoder_only import DecoderOnly
from dynapipe_hpc.architecture.part import LAYER, Part, Side


@dataclass(frozen=True, slots=True)
class Gpt(DecoderOnly):
    """`Architecture` of a GPT."""

    options: ClassVar[tuple[str, ...]] = ("head_size", "norm_epsilon", "tied_head", "dropout")
    fingerprint = ("hidden_size", "n_heads", "ffn_size", "vocab_size", "has_dropout")
    divisible_by_shards = ("n_heads", "ffn_size")
    linear_layers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention.query_key_value": ("query_key_value",),
        "attention.output": ("attention_output",),
        "feed_forward.inner": ("up",),
        "feed_forward.output": ("down",),
    }

    @property
    def has_dropout(self) -> bool:
        """Whether layers take the time of dropout, at any rate."""
        return bool(self.sizes.dropout)

    def check(self) -> None:
        """Refuses attention heads whose total width is not the hidden size."""
        sizes = self.sizes
        if sizes.hidden_size % sizes.n_heads:
            raise ValueError(
                f"hidden_size ({sizes.hidden_size}) must be a multiple of n_heads ({sizes.n_heads})"
            )
        if sizes.attention_size != sizes.hidden_size:
            raise ValueError(
                f"in a gpt, n_heads ({sizes.n_heads}) x head_size ({sizes.head_size}) must be "
                f"hidden_size ({sizes.hidden_size}); leave head_size out"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layer, embedding, head."""
        sizes, width = self.sizes, self.sizes.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = sizes.attention_size // n_shards, sizes.ffn_size // n_shards
        norm = 2 * width  # scales and shifts
        masked = stream if self.has_dropout else 0
        attention = adapted(
            self_attention(width, stream, heads, vectors=norm + 3 * heads + width, n_joined=3),
            sizes.lora,
            Maps(width, {"query_key_value": 3 * heads}, kept=Amount(stream)),
            Maps(heads, {"attention_output": width}),
        )
        fed_forward = adapted(
            feed_forward(width, stream, inner, vectors=norm + inner + width, n_kept=2),
            sizes.lora,
            Maps(width, {"up": inner}, kept=Amount(stream)),
            Maps(inner, {"down": width}, kept=Amount(inner)),
        )
        parts = {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward, masked=masked),
            **ends(
                width,
                stream,
                sizes.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=sizes.max_tokens,
                vectors=norm,
                masked=masked,
            ),
        }
        return frozen_but_adapters(parts, sizes.lora)
