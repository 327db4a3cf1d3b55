"""Sizes of a model, as architectures need them."""

from typing import Protocol


class Sizes(Protocol):
    """Sizes of a model; `ModelShape`, made from the [model] table, has them."""

    @property
    def n_layers(self) -> int:
        """Number of layers of each kind."""
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
    def max_tokens(self) -> int:
        """Longest row in tokens."""
        ...

    def ids_per_shard(self, n_shards: int) -> int:
        """Number of token ids on each tensor-parallel shard, padding included."""
        ...
