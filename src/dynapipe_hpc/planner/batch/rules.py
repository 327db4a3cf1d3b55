"""From the [planner.batch] table to batch rules."""

from typing import assert_never

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.planner.batch.baselines import DensePacking, NaivePadding
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.config import (
    DensePackingConfig,
    DynamicConfig,
    NaivePaddingConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.token_budget import TokenBudget


def batch_rules(
    config: DynamicConfig | DensePackingConfig | NaivePaddingConfig | TokenBudgetConfig,
    n_stages: int,
    max_tokens: int,
) -> list[BatchRule]:
    """The rules to try; the fastest plan decides between them.

    Args:
        config: The [planner.batch] table.
        n_stages: Stages of the pipeline.
        max_tokens: The longest row that costs are known of, data.max_tokens.

    Raises:
        InputError: Packed rows are to be longer.
    """
    match config:
        case DynamicConfig():
            shares = config.memory_shares or _doubling_shares(n_stages)
            return [DynamicBatches(share) for share in shares]
        case DensePackingConfig():
            _check_rows(config, max_tokens)
            return [
                DensePacking(config.row_tokens, config.rows_per_microbatch, config.target_tokens)
            ]
        case NaivePaddingConfig():
            return [NaivePadding(config.rows_per_microbatch)]
        case TokenBudgetConfig():
            return [TokenBudget(config.tokens_per_microbatch)]
        case _:
            assert_never(config)


def _check_rows(config: DensePackingConfig, max_tokens: int) -> None:
    for name in ("row_tokens", "target_tokens"):
        if (tokens := getattr(config, name)) > max_tokens:
            raise InputError(
                f"planner.batch.{name} ({tokens}) exceeds data.max_tokens ({max_tokens}), the "
                "longest row that there are costs of; lower the one or raise the other"
            )


def _doubling_shares(n_stages: int) -> list[float]:
    """1 / n_stages, 2 / n_stages, ... and 1."""
    return [2**k / n_stages for k in range((n_stages - 1).bit_length())] + [1.0]
