"""Contract of every `Collectives`; over several processes in tests/mpi."""

from typing import Literal

import pytest
import torch
from mpi4py import MPI
from tests.examples.collective_promises import check_collectives
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld

from dynapipe_hpc.executor.transport.mpi import MpiCollectives
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

ALONE = Cluster(device_memory_bytes=1)


@pytest.mark.parametrize(
    ("n_replicas", "n_stages", "n_shards"),
    [(1, 1, 1), (1, 3, 1), (3, 1, 1), (2, 2, 1), (1, 1, 3), (2, 3, 2), (1, 2, 2), (2, 1, 2)],
)
def test_threads_keep_the_contract(n_replicas: int, n_stages: int, n_shards: int) -> None:
    cluster = Cluster(
        n_replicas=n_replicas, n_stages=n_stages, n_shards=n_shards, device_memory_bytes=1
    )
    world = LocalWorld(cluster.n_ranks)
    sums = LocalSums(world, cluster)
    world.run(lambda rank: check_collectives(LocalCollectives(sums, rank), cluster, rank))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_add_up_in_the_type_that_is_configured(dtype: torch.dtype) -> None:
    values = [1.0, *[2.0**-9] * 7]  # each too small to be added to one in 16 bits
    values[1:] = [2.0**-9 if dtype == torch.bfloat16 else 2.0**-12] * 7

    def total(config: Literal["float32", "dtype"]) -> float:
        cluster = Cluster(n_shards=8, shard_sums=config, device_memory_bytes=1)
        world = LocalWorld(8)
        sums = LocalSums(world, cluster)
        found = world.run(
            lambda rank: LocalCollectives(sums, rank).sum_over_shards(
                torch.tensor([values[rank]], dtype=dtype)
            )
        )
        assert len({float(each) for each in found}) == 1
        return float(found[0])

    assert total("float32") == float(torch.tensor(sum(values)).to(dtype)) > 1.0
    assert abs(total("dtype") - sum(values)) <= 0.02


def test_a_process_alone_keeps_the_contract() -> None:
    check_collectives(MpiCollectives(MPI.COMM_SELF, ALONE), ALONE, 0)
    check_collectives(SingleRankCollectives(), ALONE, 0)
