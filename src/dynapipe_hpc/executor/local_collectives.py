"""Sums over the ranks of a `LocalWorld`."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from dynapipe_hpc.executor.local_world import LocalWorld
from dynapipe_hpc.plan.cluster import Cluster

T = TypeVar("T")


class _Meeting(Generic[T]):
    """A group of ranks that show each other values, round after round."""

    def __init__(self, world: LocalWorld, ranks: Sequence[int]) -> None:
        self._world = world
        self._ranks = ranks
        self._n_rounds = dict.fromkeys(ranks, 0)
        self._shown: dict[tuple[int, int], T] = {}  # by round and rank

    def gather(self, rank: int, value: T) -> list[T]:
        """The values of all ranks of the group in this round, by rank."""
        number = self._n_rounds[rank]
        self._n_rounds[rank] += 1
        keys = [(number, member) for member in self._ranks]
        with self._world.changing():
            self._shown[number, rank] = value
        what = f"a sum over ranks {list(self._ranks)}"
        self._world.wait_until(rank, lambda: all(key in self._shown for key in keys), what)
        with self._world.changing():  # all came to this round, so none still reads the last
            self._shown.pop((number - 1, rank), None)
            return [self._shown[key] for key in keys]


class LocalSums:
    """Where all ranks of a cluster, threads of one process, meet."""

    def __init__(self, world: LocalWorld, cluster: Cluster) -> None:
        """Prepares the groups of every stage and of every replica."""
        replicas, stages = range(cluster.n_replicas), range(cluster.n_stages)
        self.cluster = cluster
        self.of_stage: list[_Meeting[torch.Tensor]] = [
            _Meeting(world, [cluster.rank_of(r, s) for r in replicas]) for s in stages
        ]
        self.of_replica: list[_Meeting[float]] = [
            _Meeting(world, [cluster.rank_of(r, s) for s in stages]) for r in replicas
        ]


class LocalCollectives:
    """A rank's `Collectives` in a `LocalWorld`; sums run in the order of ranks."""

    def __init__(self, sums: LocalSums, rank: int) -> None:
        """Takes part as `rank`."""
        self._rank = rank
        self.replica = sums.cluster.replica_of(rank)
        self.n_replicas = sums.cluster.n_replicas
        self._of_stage = sums.of_stage[sums.cluster.stage_of(rank)]
        self._of_replica = sums.of_replica[self.replica]

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        shown = self._of_stage.gather(self._rank, values.clone())
        values.copy_(torch.stack(shown).sum(dim=0))

    def sum_shard_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces this replica's shard of `values` by its sum over replicas, and no other."""
        shown = self._of_stage.gather(self._rank, values.clone())
        total = torch.stack([self._shard(each) for each in shown]).sum(dim=0)
        self._shard(values).copy_(total)

    def gather_shards(self, values: torch.Tensor) -> None:
        """Replaces every shard of `values` by what its replica has there."""
        shown = self._of_stage.gather(self._rank, self._shard(values).clone())
        values.copy_(torch.cat(shown))

    def sum_over_stages(self, value: float) -> float:
        """The sum over the ranks of this replica."""
        return sum(self._of_replica.gather(self._rank, value))

    def _shard(self, values: torch.Tensor) -> torch.Tensor:
        return values.view(self.n_replicas, -1)[self.replica]
