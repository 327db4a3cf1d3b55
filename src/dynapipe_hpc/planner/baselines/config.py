"""The [planner.batch] tables of baselines."""

from typing import Annotated, Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

RowCount = Annotated[int, Field(ge=1, le=2**24)] | Literal["tuned"]
"""Number of rows; or "tuned": the number whose plan is predicted to be fastest, for each batch."""

TokenCount = Annotated[int, Field(ge=1, le=2**40)] | Literal["tuned"]
"""Number of tokens, or "tuned" in the same way."""


class RowCountConfig(ConfigTable):
    """The table of a rule with the same number of rows in every micro-batch.

    Attributes:
        rule: Name of the rule.
        rows_per_microbatch: Rows of a micro-batch, fewer where some replica would get no
            micro-batch; "tuned" chooses, for each batch, the number whose plan is predicted to be
            fastest.
    """

    rule: str
    rows_per_microbatch: RowCount = "tuned"

    @property
    def setting(self) -> RowCount:
        """Setting that may be tuned."""
        return self.rows_per_microbatch


class TokenCountConfig(ConfigTable):
    """The table of a rule with about the same number of tokens in every micro-batch.

    Attributes:
        rule: Name of the rule.
        tokens_per_microbatch: Maximum size of a micro-batch in tokens, padding included; a longer
            sample has a micro-batch of its own. For packed_balanced, this limits only the mean
            size. "tuned" chooses, for each batch, the number whose plan is predicted to be fastest.
    """

    rule: str
    tokens_per_microbatch: TokenCount = "tuned"

    @property
    def setting(self) -> TokenCount:
        """Setting that may be tuned."""
        return self.tokens_per_microbatch


class DensePackingConfig(RowCountConfig):
    """Samples packed into rows of equal length, the longest first, each where there is room.

    Attributes:
        row_tokens: Length of rows, at most data.max_tokens. Rows of an iteration with a longer
            sample are as long as that sample; with 0, all rows are as long as the longest sample.
        target_tokens: Length of a t5's rows of targets, like row_tokens.
    """

    rule: Literal["dense_packing"]
    row_tokens: int = Field(default=0, ge=0, le=2**24)
    target_tokens: int = Field(default=0, ge=0, le=2**24)


class NaivePaddingConfig(RowCountConfig):
    """Every sample padded to the longest of the iteration, in order of arrival."""

    rule: Literal["naive_padding"]


class TokenBudgetConfig(TokenCountConfig):
    """Samples sorted by length; every micro-batch is filled up to a limit of padded tokens."""

    rule: Literal["token_budget"]


class PackedNextFitConfig(TokenCountConfig):
    """One packed row per micro-batch, in order of arrival, as full as the next sample allows."""

    rule: Literal["packed_next_fit"]


class PackedBalancedConfig(TokenCountConfig):
    """One packed row per micro-batch, all of about the same work, small ones first and last.

    With planner.schedule.rules = ["1f1b"], this is common practice.
    """

    rule: Literal["packed_balanced"]


BaselineConfig = (
    DensePackingConfig
    | NaivePaddingConfig
    | TokenBudgetConfig
    | PackedNextFitConfig
    | PackedBalancedConfig
)
"""Tables of baselines that form micro-batches and leave their schedule open."""
