"""GPT: decoder-only, with learned positions, biases and layer norms."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dynapipe_hpc.architecture.blocks import ends, feed_forward, layer, self_attention
from dynapipe_hpc.architecture.decoder_only import DecoderOnly
from dynapipe_hpc.architecture.lora import Maps, adapted, frozen_but_adapters
from dynapipe_hpc.architecture.part import LAYER, Amount, Part, Side


class GptShape(DecoderOnly):
    """The [model] table of a gpt: learned positions, biases and layer norms, as in GPT-2.

    Attributes:
        family: Kind of model.
        max_tokens: Longest row in tokens, and size of the table of positions.
        dropout: Dropout probability in training, after the embeddings and after the projections
            back to the residual stream. Attention weights have no dropout.
    """

    family: Literal["gpt"] = "gpt"
    dropout: float = Field(default=0.0, ge=0, le=0.9)

    @property
    def fingerprint(self) -> Mapping[str, int]:
        """Sizes on which costs of a part depend."""
        return {
            "hidden_size": self.hidden_size,
            "n_heads": self.n_heads,
            "ffn_size": self.ffn_size,
            "vocab_size": self.vocab_size,
            "has_dropout": self.dropout > 0,
        }

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Linear layers that may have adapters; queries, keys and values are one."""
        return {
            "attention.query_key_value": ("query_key_value",),
            "attention.output": ("attention_output",),
            "feed_forward.inner": ("up",),
            "feed_forward.output": ("down",),
        }

    @property
    def dropout_rate(self) -> float:
        """Share of the numbers that training sets to zero."""
        return self.dropout

    @property
    def cache_width(self) -> int:
        """Width of all heads, twice."""
        return 2 * self.attention_size

    def check(self) -> None:
        """Refuses attention heads whose total width is not the hidden size."""
        if self.hidden_size % self.n_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of n_heads ({self.n_heads})"
            )
        if self.attention_size != self.hidden_size:
            raise ValueError(
                f"in a gpt, n_heads ({self.n_heads}) x head_size ({self.head_size}) must be "
                f"hidden_size ({self.hidden_size}); leave head_size out"
            )

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of each kind: layer, embedding, head."""
        width = self.hidden_size
        stream = -(-width // n_stream_shards)
        heads, inner = self.attention_size // n_shards, self.ffn_size // n_shards
        norm = 2 * width  # scales and shifts
        masked = stream if self.dropout else 0
        attention = adapted(
            self_attention(width, stream, heads, vectors=norm + 3 * heads + width, n_joined=3),
            self.lora,
            Maps(width, {"query_key_value": 3 * heads}, kept=Amount(stream)),
            Maps(heads, {"attention_output": width}),
        )
        fed_forward = adapted(
            feed_forward(width, stream, inner, vectors=norm + inner + width, n_kept=2),
            self.lora,
            Maps(width, {"up": inner}, kept=Amount(stream)),
            Maps(inner, {"down": width}, kept=Amount(inner)),
        )
        parts = {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward, masked=masked),
            **ends(
                width,
                stream,
                self.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=self.max_tokens,
                vectors=norm,
                masked=masked,
            ),
        }
        return frozen_but_adapters(parts, self.lora)
