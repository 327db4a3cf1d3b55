"""Process groups of torch.distributed, opened once per job."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

from torch import distributed
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup

from dynapipe_hpc.plan.cluster import Cluster

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True, slots=True)
class TorchGroups:
    """Process groups that a rank belongs to.

    Attributes:
        cluster: All ranks.
        rank: This one.
        same_shard: Ranks with the same shard number, in the order of plans.
        replicas: Data-parallel ranks: the same shard of the same stage, by replica.
        shards: Tensor-parallel ranks: the same stage of the same replica, by shard.
        same_replica: Ranks of the same replica.
        store: Store of the rendezvous; the groups may call it as long as they exist.
    """

    cluster: Cluster
    rank: int
    same_shard: ProcessGroup
    replicas: ProcessGroup
    shards: ProcessGroup
    same_replica: ProcessGroup
    store: Store


def open_groups(
    backend: Backend, cluster: Cluster, rank: int, store: Store, timeout_s: float
) -> TorchGroups:
    """Opens the groups of a cluster; called by all ranks together, one cluster at a time.

    Args:
        backend: Backend of torch.distributed that carries tensors.
        cluster: All ranks.
        rank: This one.
        store: Store through which the ranks exchange their addresses.
        timeout_s: Time after which torch itself ends a waiting rank, in seconds from the start of
            the operation that it waits for.
    """
    # Otherwise NCCL leaves dumps in /tmp, and its threads ask the store as long as it exists. The
    # watchdog of this package says more.
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=cluster.n_ranks, timeout=timeout
    )
    own_group = partial(_own_group, cluster, rank, timeout)
    return TorchGroups(
        cluster,
        rank,
        same_shard=own_group(cluster.shard_of),
        replicas=own_group(lambda r: cluster.stage_of(r) * cluster.n_shards + cluster.shard_of(r)),
        shards=own_group(cluster.plan_of),
        same_replica=own_group(cluster.replica_of),
        store=store,
    )


def close_groups() -> None:
    """Closes all groups; called by all ranks together."""
    distributed.destroy_process_group()


def _own_group(
    cluster: Cluster, rank: int, timeout: timedelta, part_of: Callable[[int], int]
) -> ProcessGroup:
    """The group of this rank's part; every rank creates the groups of all parts, for torch."""
    ranks = range(cluster.n_ranks)
    groups = {
        part: distributed.new_group([r for r in ranks if part_of(r) == part], timeout=timeout)
        for part in sorted({part_of(r) for r in ranks})
    }
    own = groups[part_of(rank)]
    if not isinstance(own, ProcessGroup):
        raise TypeError(f"torch left rank {rank} out of its own group")
    return own
