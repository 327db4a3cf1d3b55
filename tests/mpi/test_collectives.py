"""What every `Collectives` promises, over processes."""

import pytest
from mpi4py import MPI
from tests.oracles.collective_promises import check_collectives

from dynapipe_hpc.executor.mpi_collectives import MpiCollectives
from dynapipe_hpc.plan.cluster import Cluster

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.mark.parametrize("n_stages", [1, 2, 4])
@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_processes_keep_the_contract(n_stages: int, n_shards: int) -> None:
    if SIZE % (n_stages * n_shards):
        pytest.skip(f"{SIZE} ranks do not make {n_stages} stages of {n_shards} shards")
    cluster = Cluster(
        n_replicas=SIZE // (n_stages * n_shards),
        n_stages=n_stages,
        n_shards=n_shards,
        device_memory_bytes=1,
    )
    check_collectives(MpiCollectives(WORLD, cluster), cluster, RANK)
