"""Sums over the ranks that train one model."""

from typing import Protocol

from torch import Tensor

from dynapipe_hpc.models.shards import OneShard, Shards


class Collectives(Shards, Protocol):
    """Sums in which every rank of a group takes part, in the same order of calls.

    Replicas hold the same shard of the same stage. A tensor over replicas is contiguous and
    one-dimensional, of one length on all of them, and consists of as many equal shares.

    Contract: all ranks of a group get the same bits.
    """

    @property
    def replica(self) -> int:
        """The replica that this rank belongs to."""
        ...

    @property
    def n_replicas(self) -> int:
        """Number of replicas."""
        ...

    def sum_over_replicas(self, values: Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        ...

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Replaces this replica's share of `values` by its sum over replicas, and no other."""
        ...

    def gather_shares(self, values: Tensor) -> None:
        """Replaces every share of `values` by what its replica has there."""
        ...

    def sum_within_replica(self, value: float) -> float:
        """The sum over the ranks of this replica."""
        ...


class SingleRankCollectives(OneShard):
    """The sums of a rank that holds the whole model alone."""

    replica = 0
    n_replicas = 1

    def sum_over_replicas(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def gather_shares(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def sum_within_replica(self, value: float) -> float:
        """The value itself."""
        return value
