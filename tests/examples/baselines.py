"""Baselines with a setting, and planners by several of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.baselines.config import (
    DensePackingConfig,
    NaivePaddingConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.choose.choice import Choice, Chooser


def naive(rows: int) -> NaivePaddingConfig:
    """Naive padding."""
    return NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=rows)


def dense(row_tokens: int, rows: int) -> DensePackingConfig:
    """Dense packing."""
    return DensePackingConfig(rule="dense_packing", row_tokens=row_tokens, rows_per_microbatch=rows)


def budget(tokens: int) -> TokenBudgetConfig:
    """A token budget."""
    return TokenBudgetConfig(rule="token_budget", tokens_per_microbatch=tokens)


@dataclass(frozen=True)
class EveryChooser:
    """The plans of several choosers."""

    choosers: Sequence[Chooser]

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """All that they tried."""
        return Choice(tuple(t for each in self.choosers for t in each.choose(samples).tried))
