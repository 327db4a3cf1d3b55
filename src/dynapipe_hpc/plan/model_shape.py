"""The sizes of a model, as planner and executor both need them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class ModelShape(ConfigTable):
    """A decoder-only transformer. The [model] table.

    Attributes:
        family: Kind of model.
        n_layers: Transformer layers over all stages.
        hidden_size: Width of the residual stream.
        n_heads: Attention heads; divides hidden_size.
        ffn_size: Inner width of the feed-forward block.
        vocab_size: Number of token ids.
        max_tokens: Longest row that the position table holds.
    """

    family: Literal["gpt"] = "gpt"
    n_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    ffn_size: int = Field(ge=1)
    vocab_size: int = Field(ge=2)
    max_tokens: int = Field(ge=1)

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.hidden_size % self.n_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of n_heads ({self.n_heads})"
            )
        return self

    def layers_of_stage(self, stage: int, n_stages: int) -> range:
        """Indices of the layers on a stage: equal shares, what is left over to the middle.

        The ends also hold the embedding and the head, so stages between them take the
        remaining layers first; ends come last.
        """
        share, left_over = divmod(self.n_layers, n_stages)
        by_room = sorted(range(n_stages), key=lambda s: (s in (0, n_stages - 1), s))
        takes_more = set(by_room[:left_over])
        first = sum(share + (s in takes_more) for s in range(stage))
        return range(first, first + share + (stage in takes_more))
