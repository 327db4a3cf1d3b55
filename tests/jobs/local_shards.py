"""The shards of one stage as threads."""

from collections.abc import Callable
from typing import TypeVar

from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from torch import Tensor

from dynapipe_hpc.models.sharding.sharded_linear import ResidualStream, SpreadStream
from dynapipe_hpc.models.sharding.shards import Shards
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


def of_stream(stream: ResidualStream, whole: Tensor) -> Tensor:
    """Tensor of the stream that holds what a whole one does."""
    return stream.own_tokens(whole) if isinstance(stream, SpreadStream) else whole
