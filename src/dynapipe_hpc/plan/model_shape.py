"""The [model] table: the sizes of a model that planner and executor need."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.families import FAMILIES, FamilyName
from dynapipe_hpc.data.config_table import ConfigTable


class ModelShape(ConfigTable):
    """The [model] table: a transformer, decoder-only (gpt) or encoder-decoder (t5).

    Attributes:
        family: Kind of model.
        n_layers: Number of transformer layers over all stages; a t5 has as many in the encoder and
            as many in the decoder.
        hidden_size: Width of the residual stream.
        n_heads: Number of attention heads.
        head_size: Width of one head; optional for a gpt, where it is hidden_size / n_heads.
        ffn_size: Inner width of the feed-forward block.
        vocab_size: Number of token ids.
        max_tokens: Longest row in tokens: size of the position table in a gpt, a limit in a t5.
        layers_per_stage: Number of layers on every pipeline stage, those of an encoder first; None
            to choose them by cost before planning starts.
    """

    family: FamilyName = "gpt"
    n_layers: int = Field(ge=1, le=10_000)
    hidden_size: int = Field(ge=1, le=2**20)
    n_heads: int = Field(ge=1, le=2**16)
    head_size: int | None = Field(default=None, ge=1, le=2**16)
    ffn_size: int = Field(ge=1, le=2**24)
    vocab_size: int = Field(ge=2, le=2**31)
    max_tokens: int = Field(ge=1, le=2**24)
    layers_per_stage: tuple[Annotated[int, Field(ge=1)], ...] | None = None

    @model_validator(mode="after")
    def _sizes_go_together(self) -> Self:
        self.architecture.check()
        return self

    @model_validator(mode="after")
    def _every_layer_has_a_stage(self) -> Self:
        if self.layers_per_stage and sum(self.layers_per_stage) != self.n_all_layers:
            sides = " on each of two sides" if self.is_encoder_decoder else ""
            raise ValueError(
                f"layers_per_stage {list(self.layers_per_stage)} adds up to "
                f"{sum(self.layers_per_stage)}, but n_layers is {self.n_layers}{sides}, in total "
                f"{self.n_all_layers}; change either, or leave layers_per_stage out"
            )
        return self

    @property
    def architecture(self) -> Architecture:
        """What the family says about a model of these sizes."""
        return FAMILIES[self.family](self)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has an encoder for inputs and a decoder for targets."""
        return self.architecture.has_target_rows

    @property
    def attention_size(self) -> int:
        """Total width of all heads."""
        return self.n_heads * (self.head_size or self.hidden_size // self.n_heads)

    @property
    def n_all_layers(self) -> int:
        """Number of layers, those of encoder and decoder together."""
        return len(self.architecture.layer_kinds) * self.n_layers

    def first_decoder_stage(self, n_stages: int) -> int | None:
        """The stage where the decoder begins; None for a model without encoder."""
        layers = (self.layers_of_stage(stage, n_stages) for stage in range(n_stages))
        boundaries = [self.architecture.boundary(held) for held in layers]
        return boundaries.index(Boundary.PAIR) if Boundary.PAIR in boundaries else None

    def parts_of_stage(self, stage: int, n_stages: int) -> Mapping[str, int]:
        """Parts of every kind on a stage."""
        layers = self.layers_of_stage(stage, n_stages)
        return self.architecture.held(layers, first=stage == 0, last=stage == n_stages - 1)

    def layers_of_stage(self, stage: int, n_stages: int) -> range:
        """Indices of the layers on a stage."""
        counts = self.layers_per_stage or self.equal_shares(n_stages)
        first = sum(counts[:stage])
        return range(first, first + counts[stage])

    def equal_shares(self, n_stages: int) -> tuple[int, ...]:
        """Layers per stage in equal shares; the remainder goes to stages in the middle.

        The first and the last stage also hold the embedding and the head, so the stages between
        them take the remaining layers first.
        """
        share, left_over = divmod(self.n_all_layers, n_stages)
        by_room = sorted(range(n_stages), key=lambda s: (s in (0, n_stages - 1), s))
        takes_more = set(by_room[:left_over])
        return tuple(share + (stage in takes_more) for stage in range(n_stages))

    def ids_per_shard(self, n_shards: int) -> int:
        """Number of rows of the vocabulary per tensor-parallel shard; the last shard is padded.

        Source:
            Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3, on padded vocabularies.
        """
        return -(-self.vocab_size // n_shards)
