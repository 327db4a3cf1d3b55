"""The shards of one stage as threads."""

from collections.abc import Callable
from typing import TypeVar

import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from torch import Tensor

from dynapipe_hpc.models.sharding.sharded_linear import ResidualStream, SpreadStream
from dynapipe_hpc.models.sharding.shards import OneShard, Shards
from dynapipe_hpc.plan.cluster import Cluster

Result = TypeVar("Result")


def on_shards(
    n_shards: int, work: Callable[[Shards], Result], *, sequence_parallel: bool = False
) -> list[Result]:
    """Results of `work` on each of them."""
    world = LocalWorld(n_shards)
    cluster = Cluster(n_shards=n_shards, sequence_parallel=sequence_parallel, device_memory_bytes=1)
    sums = LocalSums(world, cluster)
    return world.run(lambda rank: work(LocalCollectives(sums, rank)))


class OneOf(OneShard):
    """The first of a number of shards, which finds the others to hold what it does."""

    def __init__(self, n_shards: int, *, sequence_parallel: bool = False) -> None:
        """Waits for none of them."""
        self.n_shards = n_shards
        self.sequence_parallel = sequence_parallel

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        return values.chunk(self.n_shards)[0].clone()

    def gather_over_shards(self, values: Tensor) -> Tensor:
        return torch.cat([values] * self.n_shards)


def of_stream(stream: ResidualStream, whole: Tensor) -> Tensor:
    """Tensor of the stream that holds what a whole one does."""
    return stream.own_tokens(whole) if isinstance(stream, SpreadStream) else whole
