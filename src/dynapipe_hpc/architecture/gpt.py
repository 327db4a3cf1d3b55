"""GPT: decoder-only, with learned positions, biases and layer norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dynapipe_hpc.architecture.blocks import ends, feed_forward, layer, self_attention
from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Part, Side
from dynapipe_hpc.architecture.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Gpt:
    """`Architecture` of a GPT.

    The head has weights of its own: if it shared the embedding's, the first and the last stage
    would have to exchange gradients.
    """

    sizes: Sizes

    layer_kinds = (LAYER,)
    has_target_rows = False
    tied: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    fingerprint = ("hidden_size", "n_heads", "ffn_size", "vocab_size")
    divisible_by_shards = ("n_heads", "ffn_size")

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
        attention = self_attention(
            width, stream, heads, vectors=norm + 3 * heads + width, n_joined=3
        )
        fed_forward = feed_forward(width, stream, inner, vectors=norm + inner + width, n_kept=2)
        return {
            LAYER: layer(Side.INPUTS, width, stream, inner, attention, fed_forward),
            **ends(
                width,
                stream,
                sizes.ids_per_shard(n_shards),
                embedded=Side.INPUTS,
                predicted=Side.INPUTS,
                positions=sizes.max_tokens,
                vectors=norm,
            ),
        }

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Numbers of parts: layers, the embedding on the first stage, the head on the last."""
        return {LAYER: len(layers), EMBEDDING: int(first), HEAD: int(last)}

    def boundary(self, layers: range) -> Boundary:  # noqa: ARG002 - the same from every stage
        """`Boundary.ROWS`: the activation of the rows."""
        return Boundary.ROWS
