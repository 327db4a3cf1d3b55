"""Contract of every `Collectives`, and two ends of a `TorchTransport` in one process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import ProcessGroupGloo

from dynapipe_hpc.executor.transport.torch_distributed import TorchTransport
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import Collectives


def check_collectives(collectives: Collectives, cluster: Cluster, rank: int) -> None:
    """Calls everything twice, so that rounds could get mixed up."""
    for scale in (1.0, 10.0):
        _check_places(collectives, cluster, rank)
        _check_sums(collectives, cluster, rank, scale)
        _check_sums_over_shards(collectives, cluster, rank, scale)
        _check_shares(collectives, cluster, rank, scale)
        _check_copies(collectives, cluster, rank, scale)


def _check_places(collectives: Collectives, cluster: Cluster, rank: int) -> None:
    assert collectives.replica == cluster.replica_of(rank)
    assert collectives.n_replicas == cluster.n_replicas
    assert collectives.stage == cluster.stage_of(rank)
    assert collectives.n_stages == cluster.n_stages
    assert collectives.shard == cluster.shard_of(rank)
    assert collectives.n_shards == cluster.n_shards
    assert collectives.sequence_parallel == cluster.sequence_parallel


def _check_sums(collectives: Collectives, cluster: Cluster, rank: int, scale: float) -> None:
    replica, stage, shard = cluster.replica_of(rank), cluster.stage_of(rank), cluster.shard_of(rank)
    replicas = [cluster.rank_of(r, stage, shard) for r in range(cluster.n_replicas)]
    for dtype in (torch.float32, torch.float64):
        values = scale * torch.tensor([rank, 1], dtype=dtype)
        later = [values.clone(), 2 * values]
        collectives.sum_over_replicas(values)
        assert values.tolist() == [scale * sum(replicas), scale * len(replicas)]
        for wait in [collectives.start_sum_over_replicas(each) for each in later]:
            wait()
        assert torch.equal(later[0], values)
        assert torch.equal(later[1], 2 * values)
    ranks = range(cluster.n_ranks)
    within = [r for r in ranks if cluster.replica_of(r) == replica]
    number = torch.tensor([scale * rank], dtype=torch.float64)
    collectives.sum_within_replica(number)
    assert number.item() == scale * sum(within)


def _check_sums_over_shards(
    collectives: Collectives, cluster: Cluster, rank: int, scale: float
) -> None:
    replica, stage = cluster.replica_of(rank), cluster.stage_of(rank)
    shards = [cluster.rank_of(replica, stage, shard) for shard in range(cluster.n_shards)]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        values = scale * torch.tensor([[rank, 1], [2, 3]], dtype=dtype).T  # not contiguous
        total = collectives.sum_over_shards(values)
        n = len(shards)
        assert total.dtype == dtype
        assert total.tolist() == [[scale * sum(shards), scale * 2 * n], [scale * n, scale * 3 * n]]
        assert values.tolist() == [[scale * rank, scale * 2], [scale, scale * 3]]
        own, place = scale * torch.tensor([[rank, 1.0]], dtype=dtype), cluster.shard_of(rank)
        gathered = collectives.gather_over_shards(own)
        assert gathered.dtype == dtype
        assert gathered.tolist() == [[scale * r, scale] for r in shards]
        parts = own + torch.arange(2 * n, dtype=dtype).view(-1, 1).expand(-1, 2)  # two rows each
        total = collectives.sum_own_over_shards(parts)
        assert total.dtype == dtype
        first, last = scale * sum(shards), scale * n
        assert total.tolist() == [[first + n * i, last + n * i] for i in (2 * place, 2 * place + 1)]


def _check_shares(collectives: Collectives, cluster: Cluster, rank: int, scale: float) -> None:
    n, replica = cluster.n_replicas, cluster.replica_of(rank)
    values = scale * torch.arange(3.0 * n)
    expected = values.clone()
    expected[3 * replica : 3 * replica + 3] *= n
    collectives.sum_share_over_replicas(values)
    assert torch.equal(values, expected)
    for dtype in (torch.float32, torch.bfloat16):
        shares = torch.full((2 * n,), -1.0, dtype=dtype)
        shares[2 * replica : 2 * replica + 2] = replica + scale
        collectives.gather_shares(shares)
        assert shares.tolist() == [r + scale for r in range(n) for _ in range(2)]


def _check_copies(collectives: Collectives, cluster: Cluster, rank: int, scale: float) -> None:
    replica, stage, shard = cluster.replica_of(rank), cluster.stage_of(rank), cluster.shard_of(rank)
    n = cluster.n_stages
    for stages in {(0, n - 1), tuple(range(n)), tuple(range(1, n))}:
        if stage not in stages or len(set(stages)) != len(stages):
            continue
        holders = [cluster.rank_of(replica, s, shard) for s in stages]
        values = scale * torch.tensor([rank, 1.0])
        collectives.sum_over_copies(values, stages)
        total = [scale * sum(holders), scale * len(holders)]
        assert values.tolist() == (total if stage == stages[0] else [scale * rank, scale])
        for dtype in (torch.float64, torch.bfloat16):
            copied = torch.tensor([rank, scale], dtype=dtype)
            collectives.copy_from_first(copied, stages)
            assert copied.tolist() == [holders[0], scale]


CPU = torch.device("cpu")


def gloo_ends() -> list[TorchTransport]:
    """Ranks 0 and 1, connected for tensors of float32."""
    store = HashStore()  # shared by threads: each end waits for the other while it is made
    with ThreadPoolExecutor(2) as ends:
        return list(ends.map(lambda rank: _end(store, rank), range(2)))


def _end(store: Store, rank: int) -> TorchTransport:
    groups = {payload: _group(PrefixStore(payload.name, store), rank) for payload in Payload}
    return TorchTransport(groups, CPU, torch.float32)


def _group(store: Store, rank: int) -> ProcessGroup:
    """One end of two, without the one default group that a process can have."""
    group = ProcessGroup(store, rank, 2)
    gloo = ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
    group._register_backend(CPU, ProcessGroup.BackendType.GLOO, gloo)
    return group
