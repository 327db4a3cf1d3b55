"""Sizes of a model, as architectures need them."""

from typing import Protocol

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.rope_scaling import RopeScaling


class Sizes(Protocol):
    """Sizes of a model; `ModelShape`, made from the [model] table, has them."""

    @property
    def n_layers(self) -> int:
        """Number of layers; of an encoder-decoder model, of the encoder."""
        ...

    @property
    def n_decoder_layers(self) -> int | None:
        """Number of layers of the decoder; None for as many as in the encoder."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def n_heads(self) -> int:
        """Number of attention heads."""
        ...

    @property
    def head_size(self) -> int | None:
        """Width of one head; None if the table leaves it out."""
        ...

    @property
    def attention_size(self) -> int:
        """Total width of all heads."""
        ...

    @property
    def ffn_size(self) -> int:
        """Inner width of the feed-forward block."""
        ...

    @property
    def gated(self) -> bool | None:
        """Whether a second map to the inner width multiplies the activation function's output."""
        ...

    @property
    def dropout(self) -> float | None:
        """Share of the numbers that dropout sets to zero; None if the table leaves it out."""
        ...

    @property
    def n_buckets(self) -> int | None:
        """Number of ranges of distances with a relative bias; None if the table leaves it out."""
        ...

    @property
    def max_distance(self) -> int | None:
        """Distance from which on all have the same bias; None if the table leaves it out."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest row in tokens."""
        ...

    @property
    def norm_epsilon(self) -> float | None:
        """Number that norms add to a variance or mean square; None if the table leaves it out."""
        ...

    @property
    def tied_head(self) -> bool | None:
        """Whether logits have the embedding's weights; None if the table leaves it out."""
        ...

    @property
    def scale_decoder_outputs(self) -> bool | None:
        """Whether what enters a tied head is divided; None if the table leaves it out."""
        ...

    @property
    def lora(self) -> Lora | None:
        """Adapters that are trained in place of the weights; None if weights are trained."""
        ...

    @property
    def n_kv_heads(self) -> int | None:
        """Number of heads of keys and values; None if the table leaves it out."""
        ...

    @property
    def rope_theta(self) -> float | None:
        """Base of the angles of rotary positions; None if the table leaves it out."""
        ...

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """Scaling of rotary positions; None if the table leaves it out."""
        ...

    @property
    def qkv_bias(self) -> bool | None:
        """Whether maps of queries, keys and values have biases; None if the table leaves it out."""
        ...

    @property
    def qk_norm(self) -> bool | None:
        """Whether queries and keys are normalised; None if the table leaves it out."""
        ...

    def ids_per_shard(self, n_shards: int) -> int:
        """Number of token ids on each tensor-parallel shard, padding included."""
        ...
