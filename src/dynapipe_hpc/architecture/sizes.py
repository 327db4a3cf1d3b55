"""The sizes that a family of models is asked about."""

from typing import Protocol


class Sizes(Protocol):
    """Sizes of one model, see `ModelShape`, whose `[model]` table gives them."""

    @property
    def n_layers(self) -> int:
        """Layers of every kind."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def n_heads(self) -> int:
        """Attention heads."""
        ...

    @property
    def head_size(self) -> int | None:
        """Width of one; None if the table leaves it out."""
        ...

    @property
    def attention_size(self) -> int:
        """Width of all heads together."""
        ...

    @property
    def ffn_size(self) -> int:
        """Inner width of the feed-forward block."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest row."""
        ...

    def ids_per_shard(self, n_shards: int) -> int:
        """Token ids on every shard, padding included."""
        ...
