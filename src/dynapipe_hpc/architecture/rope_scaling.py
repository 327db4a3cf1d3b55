"""Scaling of rotary positions, by which a model reads longer rows than it was first trained on.

The scalings in the settings of `transformers` decoders are read here, too. Two types, "longrope"
and "dynamic", change a sample's angles if a longer one shares its micro-batch. Up to a certain
row length they do not, and longer rows are refused.
"""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal, Self

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

    A pair is two numbers of a head that rotary positions rotate together. Between slow and fast
    pairs, the division changes gradually.

    Attributes:
        kind: Kind of scaling.
        factor: Divisor of the positions of slow pairs.
        low_freq_factor: A pair of rotary dimensions that rotates at most this often in
            `original_max_tokens` positions is slow.
        high_freq_factor: A pair of rotary dimensions that rotates at least this often in
            `original_max_tokens` positions is fast: its positions are not divided.
        original_max_tokens: Longest row for which the model was trained before the scaling.

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


class YarnScaling(ConfigTable):
    """The [model.rope_scaling] table of kind "yarn": positions of slow pairs are divided.

    A pair is two numbers of a head that rotary positions rotate together. Between slow and fast
    pairs, the division changes gradually.

    Attributes:
        kind: Kind of scaling.
        factor: Divisor of the positions of slow pairs.
        beta_fast: A pair of rotary dimensions that rotates at least this often in
            `original_max_tokens` positions is fast: its positions are not divided.
        beta_slow: A pair of rotary dimensions that rotates at most this often in
            `original_max_tokens` positions is slow.
        original_max_tokens: Longest row for which the model was trained before the scaling.
        attention_factor: Factor by which rotated queries and keys are multiplied; None means 0.1
            ln(factor) + 1.
        truncate: Whether the limits between fast and slow pairs are rounded outwards to integer
            indices of pairs.

    Source:
        Peng et al., "YaRN", arXiv:2309.00071; the limits as in `transformers`, rope type "yarn".
    """

    kind: Literal["yarn"]
    factor: float = Field(ge=1, le=2**20)
    beta_fast: float = Field(default=32.0, gt=0, le=2**20)
    beta_slow: float = Field(default=1.0, gt=0, le=2**20)
    original_max_tokens: int = Field(ge=1, le=2**24)
    attention_factor: float | None = Field(default=None, gt=0, le=2**20)
    truncate: bool = True

    @property
    def vector_factor(self) -> float:
        """Factor by which rotated queries and keys are multiplied."""
        return self.attention_factor or mean_scale(self.factor)

    @model_validator(mode="after")
    def _check_fast_exceeds_slow(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast ({self.beta_fast}) must be greater than beta_slow "
                f"({self.beta_slow}); by default they are 32 and 1"
            )
        return self


def mean_scale(factor: float, weight: float = 1.0) -> float:
    """Factor by which YaRN multiplies queries and keys, if positions are divided by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling
"""Scaling of any kind."""

AnyRopeScaling = Annotated[RopeScaling, Field(discriminator="kind")]
"""The [model.rope_scaling] table, whose key `kind` tells the kinds apart."""


LONG = ("longrope", "su")
"""Names of the type with short and long factors: the current name, and the one in old files."""
DYNAMIC = "dynamic"


def rotation_tables(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tables of `config.json` about rotary positions; one per kind of layer if kinds differ."""
    for key in ("rope_parameters", "rope_scaling"):  # in files of version 5, and of 4
        table = values.get(key)
        for each in [table, *table.values()] if isinstance(table, dict) else []:
            if isinstance(each, dict):
                yield each


def rotation_type(table: Mapping[str, Any]) -> Any:
    """Type of rotary positions that a table names."""
    return table.get("rope_type", table.get("type", "default"))


def short_tokens(values: Mapping[str, Any]) -> int | None:
    """Longest row, in tokens, for which "longrope" uses short factors; None for other types."""
    name = "original_max_position_embeddings"
    for table in rotation_tables(values):
        if rotation_type(table) in LONG:
            known = (values.get(name), table.get(name), values.get("max_position_embeddings"))
            return next((n for n in known if isinstance(n, int)), None)
    return None


def plain_rotations(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with "dynamic" angles made plain: no row here is long enough for them to differ."""
    plain = deepcopy(dict(values))
    for table in rotation_tables(plain):
        if rotation_type(table) == DYNAMIC:
            table["rope_type"] = table["type"] = "default"
    return plain
