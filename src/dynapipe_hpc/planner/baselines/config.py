"""The [planner.batch] tables of baselines."""

from typing import Annotated, Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

RowCount = Annotated[int, Field(ge=1, le=2**24)] | Literal["tuned"]
"""Number of rows; or "tuned": the number whose plan is predicted to be fastest, for each batch."""

TokenCount = Annotated[int, Field(ge=1, le=2**40)] | Literal["tuned"]
"""Number of tokens, or "tuned" in the same way."""


class DensePackingConfig(ConfigTable):
    """Samples packed into rows of one length, the longest first, each where there is room.

    Attributes:
        rule: Chooses this table.
        rows_per_microbatch: Rows of a micro-batch; fewer where replicas would have none.
        row_tokens: Length of rows, at most data.max_tokens; at least as long as the longest
            sample of the iteration, which 0 stands for.
        target_tokens: Length of the rows of targets in a t5, in the same way.
    """

    rule: Literal["dense_packing"]
    rows_per_microbatch: RowCount = "tuned"
    row_tokens: int = Field(default=0, ge=0, le=2**24)
    target_tokens: int = Field(default=0, ge=0, le=2**24)


class NaivePaddingConfig(ConfigTable):
    """Every sample padded to the longest of the iteration, in order of arrival.

    Attributes:
        rule: Chooses this table.
        rows_per_microbatch: Samples of a micro-batch; fewer where replicas would have none.
    """

    rule: Literal["naive_padding"]
    rows_per_microbatch: RowCount = "tuned"


class LengthGroupedConfig(ConfigTable):
    """Samples by length, a fixed number per micro-batch, padded to its longest.

    Attributes:
        rule: Chooses this table.
        rows_per_microbatch: Samples of a micro-batch; fewer where replicas would have none.
    """

    rule: Literal["length_grouped"]
    rows_per_microbatch: RowCount = "tuned"


class TokenBudgetConfig(ConfigTable):
    """Samples by length, as many per micro-batch as keep within a number of padded tokens.

    Attributes:
        rule: Chooses this table.
        tokens_per_microbatch: Limit on padded tokens; halved where replicas would have no
            micro-batch.
    """

    rule: Literal["token_budget"]
    tokens_per_microbatch: TokenCount = "tuned"


class AuthorsConfig(ConfigTable):
    """What the published planner does: micro-batches, their order, mode and schedule.

    The paper lets limits be 0.005 ms apart, its artifact 5 ms. It chooses between schedules and
    orders in its own way, so that planner.schedule and planner.search do not count.

    Attributes:
        rule: Chooses this table.
        interval_ms: Least distance between limits on the time of a micro-batch that are tried.
        seed: Seed of the order of micro-batches that take about the same time.
    """

    rule: Literal["authors"]
    interval_ms: float = Field(default=5.0, ge=0, le=1e6)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)


BaselineConfig = DensePackingConfig | NaivePaddingConfig | LengthGroupedConfig | TokenBudgetConfig
"""Tables of baselines that only form micro-batches."""
