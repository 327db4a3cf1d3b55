"""Sums over the ranks that train one model."""

from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Sums in which every rank of a group takes part, in the same order of calls.

    Contract: all ranks of a group get the same bits.
    """

    def sum_over_replicas(self, values: Tensor) -> None:
        """Replaces `values` by the sum over the ranks that hold the same stage.

        Args:
            values: Contiguous, one-dimensional, of one length on all these ranks.
        """
        ...

    def sum_over_stages(self, value: float) -> float:
        """The sum over the ranks of this replica."""
        ...


class SingleRankCollectives:
    """The sums of a rank that holds the whole model alone."""

    def sum_over_replicas(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def sum_over_stages(self, value: float) -> float:
        """The value itself."""
        return value
