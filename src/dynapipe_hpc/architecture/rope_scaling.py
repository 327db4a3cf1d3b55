"""Scaling of rotary positions, by which a model reads longer rows than it was first trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class LinearScaling(ConfigTable):
    """The [model.rope_scaling] table of kind "linear": all positions are divided.

    Attributes:
        kind: Kind of scaling.
        factor: Divisor of positions.

    Source:
        Chen et al., "Extending Context Window of Large Language Models via Positional
        Interpolation", arXiv:2306.15595.
    """

    kind: Literal["linear"]
    factor: float = Field(ge=1, le=2**20)


class Llama3Scaling(ConfigTable):
    """The [model.rope_scaling] table of kind "llama3": positions of slow pairs are divided.

    Attributes:
        kind: Kind of scaling.
        factor: Divisor of the positions of pairs that turn slowly.
        low_freq_factor: Full turns in rows of `original_max_tokens` up to which a pair is slow.
        high_freq_factor: Full turns in such rows from which positions are not divided.
        original_max_tokens: Longest row of the training before.

    Source:
        Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783; the formula as in
        `transformers`, rope type "llama3".
    """

    kind: Literal["llama3"]
    factor: float = Field(ge=1, le=2**20)
    low_freq_factor: float = Field(gt=0, le=2**20)
    high_freq_factor: float = Field(gt=0, le=2**20)
    original_max_tokens: int = Field(ge=1, le=2**24)

    @model_validator(mode="after")
    def _check_high_freq_exceeds_low(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor}) must be greater than low_freq_factor "
                f"({self.low_freq_factor}); Llama 3 has 4 and 1"
            )
        return self


RopeScaling = LinearScaling | Llama3Scaling
"""Scaling of either kind."""

AnyRopeScaling = Annotated[RopeScaling, Field(discriminator="kind")]
"""The [model.rope_scaling] table, whose key `kind` tells the kinds apart."""
