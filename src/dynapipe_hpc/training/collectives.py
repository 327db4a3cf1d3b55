"""Collectives (all-reduce, reduce-scatter, all-gather) of the ranks that train one model."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from dynapipe_hpc.models.sharding.shards import OneShard, Shards


def done() -> None:
    """Returns at once: the operation is already finished."""


class Collectives(Shards, Protocol):
    """Collective operations, which all ranks of a group call in the same order.

    The group "replicas" consists of the data-parallel ranks that hold the same shard of the same
    stage. Tensors over replicas are contiguous, one-dimensional and equally long on all of them,
    and consist of one equal share per replica.

    Contract: all ranks of a group get bitwise equal results.

    `replica`, `stage`: Numbers of this rank's replica and stage. `sums_beside_work`: Whether sums
    that were started overlap with the rank's computation.
    """

    replica: int
    stage: int
    n_stages: int
    n_replicas: int
    sums_beside_work: bool

    def sum_over_replicas(self, values: Tensor) -> None:
        """All-reduce: replaces `values` with their sum over replicas."""
        ...

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        """Starts `sum_over_replicas`; returns a function to wait for it before reading."""
        ...

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Reduce-scatter: replaces this replica's share of `values`, and only it, with its sum."""
        ...

    def gather_shares(self, values: Tensor) -> None:
        """All-gather: replaces every share of `values` with its replica's values."""
        ...

    def sum_within_replica(self, values: Tensor) -> None:
        """All-reduce: replaces `values` with their sum over the ranks of this replica."""
        ...

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        """Reduce: sums values of tied weights over stages of this replica, onto the first stage.

        Args:
            values: Contiguous, one-dimensional tensor; replaced on the first stage only.
            stages: Stages that take part, ascending, including this one.
        """
        ...

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        """Broadcast: replaces `values` with the values of the first of `stages`."""
        ...


class SingleRankCollectives(OneShard):
    """Collectives of a single rank that holds the complete model."""

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
