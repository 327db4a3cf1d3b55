"""Sums over the ranks that train one model."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from dynapipe_hpc.models.shards import OneShard, Shards


def done() -> None:
    """Waits for nothing."""


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
    def stage(self) -> int:
        """The stage that this rank holds a shard of."""
        ...

    @property
    def n_stages(self) -> int:
        """Number of stages of a replica."""
        ...

    @property
    def n_replicas(self) -> int:
        """Number of replicas."""
        ...

    @property
    def sums_beside_work(self) -> bool:
        """Whether sums that were started go on while the rank computes."""
        ...

    def sum_over_replicas(self, values: Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        ...

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        """Starts `sum_over_replicas`; returns what waits for it, before which nobody reads."""
        ...

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Replaces this replica's share of `values` by its sum over replicas, and no other."""
        ...

    def gather_shares(self, values: Tensor) -> None:
        """Replaces every share of `values` by what its replica has there."""
        ...

    def sum_within_replica(self, values: Tensor) -> None:
        """Replaces `values` by their sum over the ranks of this replica."""
        ...

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        """Adds up what stages of this replica hold of the same weights; the first has the sum.

        Args:
            values: Contiguous, one-dimensional; replaced on the first stage, no other.
            stages: Ascending, with this one.
        """
        ...

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        """Replaces `values` by those of the first of `stages`; see `sum_over_copies`."""
        ...


class SingleRankCollectives(OneShard):
    """The sums of a rank that holds the whole model alone."""

    replica = 0
    stage = 0
    n_stages = 1
    n_replicas = 1
    sums_beside_work = False

    def sum_over_replicas(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:  # noqa: ARG002
        """Leaves `values` as they are."""
        return done

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def gather_shares(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def sum_within_replica(self, values: Tensor) -> None:
        """Leaves `values` as they are."""

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        """Leaves `values` as they are."""

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        """Leaves `values` as they are."""
