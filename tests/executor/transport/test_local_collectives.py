import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld

from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=1)


def test_sums_run_over_the_right_ranks_round_after_round() -> None:
    world = LocalWorld(4)
    sums = LocalSums(world, CLUSTER)

    def work(rank: int) -> list[float]:
        collectives = LocalCollectives(sums, rank)
        found = []
        for scale in (1.0, 10.0):
            values = torch.tensor([scale * rank])
            collectives.sum_over_replicas(values)
            number = torch.tensor([scale * rank])
            collectives.sum_within_replica(number)
            found += [values.item(), number.item()]
        return found

    # Replica 0 is ranks 0 and 1, replica 1 ranks 2 and 3.
    assert world.run(work) == [[2, 1, 20, 10], [4, 1, 40, 10], [2, 5, 20, 50], [4, 5, 40, 50]]


def test_a_rank_that_does_not_come_is_told_of() -> None:
    world = LocalWorld(4)
    sums = LocalSums(world, CLUSTER)

    def work(rank: int) -> None:
        if rank != 3:
            LocalCollectives(sums, rank).sum_within_replica(torch.ones(1))

    with pytest.raises(TransportError, match=r"rank 2 waits for a sum over ranks \[2, 3\]"):
        world.run(work)
