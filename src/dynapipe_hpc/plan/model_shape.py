"""The sizes of a model that planner and executor need."""

from typing import Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.families import FAMILIES, FamilyName
from dynapipe_hpc.data.config_table import ConfigTable


class ModelShape(ConfigTable):
    """A transformer, decoder-only (gpt) or encoder-decoder (t5), before it is cut into stages.

    Attributes:
        family: Kind of model.
        n_layers: Number of transformer layers; a t5 has as many in the encoder and as many in the
            decoder.
        hidden_size: Width of the residual stream.
        n_heads: Number of attention heads.
        head_size: Width of one head; optional for a gpt, where it is hidden_size / n_heads.
        ffn_size: Inner width of the feed-forward block.
        vocab_size: Number of token ids.
        max_tokens: Longest row in tokens: size of the position table in a gpt, a limit in a t5.
    """

    family: FamilyName = "gpt"
    n_layers: int = Field(ge=1, le=10_000)
    hidden_size: int = Field(ge=1, le=2**20)
    n_heads: int = Field(ge=1, le=2**16)
    head_size: int | None = Field(default=None, ge=1, le=2**16)
    ffn_size: int = Field(ge=1, le=2**24)
    vocab_size: int = Field(ge=2, le=2**31)
    max_tokens: int = Field(ge=1, le=2**24)

    @model_validator(mode="after")
    def _sizes_go_together(self) -> Self:
        self.architecture.check()
        return self

    @property
    def architecture(self) -> Architecture:
        """What the family says about a model of these sizes."""
        return FAMILIES[self.family](self)

    @property
    def attention_size(self) -> int:
        """Total width of all heads."""
        return self.n_heads * (self.head_size or self.hidden_size // self.n_heads)

    @property
    def n_all_layers(self) -> int:
        """Number of layers, those of encoder and decoder together."""
        return len(self.architecture.layer_kinds) * self.n_layers

    def ids_per_shard(self, n_shards: int) -> int:
        """Number of rows of the vocabulary per tensor-parallel shard; the last shard is padded.

        Source:
            Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3, on padded vocabularies.
        """
        return -(-self.vocab_size // n_shards)
