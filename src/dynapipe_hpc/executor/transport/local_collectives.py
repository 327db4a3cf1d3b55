"""Collectives (all-reduce, all-gather, ...) over the ranks of a `LocalWorld`."""

from collections.abc import Callable, Hashable, Sequence

import torch

from dynapipe_hpc.executor.transport.local_world import LocalWorld
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import done


class _Meeting:
    """A group of ranks that exchange values, round by round."""

    def __init__(self, world: LocalWorld, ranks: Sequence[int]) -> None:
        self._world = world
        self._ranks = ranks
        self._n_rounds = dict.fromkeys(ranks, 0)
        self._shown: dict[tuple[int, int], torch.Tensor] = {}  # by round and rank

    def gather(self, rank: int, value: torch.Tensor) -> list[torch.Tensor]:
        """All-gather: the values of all ranks of the group in this round, by rank."""
        number = self._n_rounds[rank]
        self._n_rounds[rank] += 1
        keys = [(number, member) for member in self._ranks]
        with self._world.changing():
            self._shown[number, rank] = value
        what = f"a sum over ranks {list(self._ranks)}"
        self._world.wait_until(rank, lambda: all(key in self._shown for key in keys), what)
        with self._world.changing():  # all are in this round, so none still reads the previous one
            self._shown.pop((number - 1, rank), None)
            return [self._shown[key] for key in keys]


class LocalSums:
    """Process groups of all ranks of a cluster that are threads of one process."""

    def __init__(self, world: LocalWorld, cluster: Cluster) -> None:
        """Prepares the groups of every rank."""
        self.cluster = cluster
        ranks, of = range(cluster.n_ranks), cluster
        self.over_replicas: list[_Meeting] = _meetings(
            world, [(of.stage_of(rank), of.shard_of(rank)) for rank in ranks]
        )
        self.over_shards: list[_Meeting] = _meetings(world, [of.plan_of(rank) for rank in ranks])
        self._world = world
        self._holders: dict[tuple[int, ...], _Meeting] = {}
        self.within_replica: list[_Meeting] = _meetings(
            world, [of.replica_of(rank) for rank in ranks]
        )

    def of_ranks(self, ranks: Sequence[int]) -> _Meeting:
        """The group of some ranks, created by the first of them that asks for it."""
        with self._world.changing():
            key = tuple(ranks)
            if key not in self._holders:
                self._holders[key] = _Meeting(self._world, key)
            return self._holders[key]


def _meetings(world: LocalWorld, colours: Sequence[Hashable]) -> list[_Meeting]:
    """The group of every rank, by rank: all ranks of its colour."""
    members = {c: [r for r, other in enumerate(colours) if other == c] for c in set(colours)}
    of_colour: dict[Hashable, _Meeting] = {c: _Meeting(world, m) for c, m in members.items()}
    return [of_colour[colour] for colour in colours]


class LocalCollectives:
    """A rank's `Collectives` in a `LocalWorld`; sums are in rank order.

    Sums do not really run beside a rank's work, but code that relies on it can be tested here.
    """

    sums_beside_work = True

    def __init__(self, sums: LocalSums, rank: int) -> None:
        """Takes part as rank `rank`."""
        self._rank = rank
        self._sums = sums
        self.stage = sums.cluster.stage_of(rank)
        self.n_stages = sums.cluster.n_stages
        self.replica = sums.cluster.replica_of(rank)
        self.n_replicas = sums.cluster.n_replicas
        self.shard = sums.cluster.shard_of(rank)
        self.n_shards = sums.cluster.n_shards
        self.sequence_parallel = sums.cluster.sequence_parallel
        self._over_replicas = sums.over_replicas[rank]
        self._over_shards = sums.over_shards[rank]
        self._within_replica = sums.within_replica[rank]

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """All-reduce: replaces `values` with their sum over replicas."""
        shown = self._over_replicas.gather(self._rank, values.clone())
        values.copy_(torch.stack(shown).sum(dim=0))

    def start_sum_over_replicas(self, values: torch.Tensor) -> Callable[[], None]:
        """All-reduce over replicas that is finished when the call returns."""
        self.sum_over_replicas(values)
        return done

    def sum_share_over_replicas(self, values: torch.Tensor) -> None:
        """Reduce-scatter: replaces only this replica's share of `values`, with its sum."""
        shown = self._over_replicas.gather(self._rank, values.clone())
        total = torch.stack([self._share(each) for each in shown]).sum(dim=0)
        self._share(values).copy_(total)

    def gather_shares(self, values: torch.Tensor) -> None:
        """All-gather: replaces every share of `values` with that of its replica."""
        shown = self._over_replicas.gather(self._rank, self._share(values).clone())
        values.copy_(torch.cat(shown))

    def sum_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        """All-reduce over shards, not in place."""
        shown = self._over_shards.gather(self._rank, values.clone())
        return torch.stack(shown).sum(dim=0, dtype=self._wide(values)).to(values.dtype)

    def sum_own_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        """Reduce-scatter over shards, not in place."""
        return self.sum_over_shards(values).chunk(self.n_shards)[self.shard].clone()

    def gather_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        """All-gather over shards."""
        return torch.cat(self._over_shards.gather(self._rank, values.clone()))

    def sum_within_replica(self, values: torch.Tensor) -> None:
        """All-reduce: replaces `values` with their sum over the ranks of this replica."""
        shown = self._within_replica.gather(self._rank, values.clone())
        values.copy_(torch.stack(shown).sum(dim=0))

    def sum_over_copies(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Reduce: sums copies of weights on the first stage that holds them."""
        shown = self._holders_of(stages).gather(self._rank, values.clone())
        if self.stage == stages[0]:
            values.copy_(torch.stack(shown).sum(dim=0))

    def copy_from_first(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Broadcast: replaces `values` with those of the first of `stages`."""
        values.copy_(self._holders_of(stages).gather(self._rank, values.clone())[0])

    def _holders_of(self, stages: Sequence[int]) -> _Meeting:
        rank_of = self._sums.cluster.rank_of
        return self._sums.of_ranks([rank_of(self.replica, s, self.shard) for s in stages])

    def _wide(self, values: torch.Tensor) -> torch.dtype:
        """Type in which shards add numbers up."""
        is_wide = self._sums.cluster.shard_sums == "float32"
        return torch.promote_types(values.dtype, torch.float32) if is_wide else values.dtype

    def _share(self, values: torch.Tensor) -> torch.Tensor:
        return values.view(self.n_replicas, -1)[self.replica]
