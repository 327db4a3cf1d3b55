"""What every `Collectives` promises, checked by each rank of a cluster."""

import torch

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import Collectives


def check_collectives(collectives: Collectives, cluster: Cluster, rank: int) -> None:
    """Calls everything twice, so that rounds could get mixed up."""
    for scale in (1.0, 10.0):
        _check_places(collectives, cluster, rank)
        _check_sums(collectives, cluster, rank, scale)
        _check_shards(collectives, cluster, rank, scale)


def _check_places(collectives: Collectives, cluster: Cluster, rank: int) -> None:
    assert collectives.replica == cluster.replica_of(rank)
    assert collectives.n_replicas == cluster.n_replicas


def _check_sums(collectives: Collectives, cluster: Cluster, rank: int, scale: float) -> None:
    stage, replica = cluster.stage_of(rank), cluster.replica_of(rank)
    same_stage = [cluster.rank_of(r, stage) for r in range(cluster.n_replicas)]
    same_replica = [cluster.rank_of(replica, s) for s in range(cluster.n_stages)]
    for dtype in (torch.float32, torch.float64):
        values = scale * torch.tensor([rank, 1], dtype=dtype)
        collectives.sum_over_replicas(values)
        assert values.tolist() == [scale * sum(same_stage), scale * len(same_stage)]
    assert collectives.sum_over_stages(scale * rank) == scale * sum(same_replica)


def _check_shards(collectives: Collectives, cluster: Cluster, rank: int, scale: float) -> None:
    n, replica = cluster.n_replicas, cluster.replica_of(rank)
    values = scale * torch.arange(3.0 * n)
    expected = values.clone()
    expected[3 * replica : 3 * replica + 3] *= n
    collectives.sum_shard_over_replicas(values)
    assert torch.equal(values, expected)
    for dtype in (torch.float32, torch.bfloat16):
        shards = torch.full((2 * n,), -1.0, dtype=dtype)
        shards[2 * replica : 2 * replica + 2] = replica + scale
        collectives.gather_shards(shards)
        assert shards.tolist() == [r + scale for r in range(n) for _ in range(2)]
