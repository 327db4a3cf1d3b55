"""The [planner.batch] table: how samples form micro-batches."""

from typing import Annotated, Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

Share = Annotated[float, Field(gt=0, le=1)]


class DynamicConfig(ConfigTable):
    """Micro-batches that finish soonest, found anew for every iteration.

    Attributes:
        rule: Chooses this table.
        memory_shares: Of a stage's activation memory, what one micro-batch may keep; of the
            plans made with each, the fastest is taken. Empty for 1 / n_stages and its doubles
            up to 1.
    """

    rule: Literal["dynamic"] = "dynamic"
    memory_shares: tuple[Share, ...] = ()


class DensePackingConfig(ConfigTable):
    """Samples packed into rows of data.max_tokens, in order of arrival.

    Attributes:
        rule: Chooses this table.
        rows_per_microbatch: Rows of a micro-batch.
    """

    rule: Literal["dense_packing"]
    rows_per_microbatch: int = Field(ge=1)


class NaivePaddingConfig(ConfigTable):
    """Every sample padded to the longest of the iteration, in order of arrival.

    Attributes:
        rule: Chooses this table.
        rows_per_microbatch: Samples of a micro-batch.
    """

    rule: Literal["naive_padding"]
    rows_per_microbatch: int = Field(ge=1)


BatchConfig = Annotated[
    DynamicConfig | DensePackingConfig | NaivePaddingConfig, Field(discriminator="rule")
]
