"""Process groups of torch.distributed, made once per job."""

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
    """The groups of torch.distributed that a rank is in.

    Attributes:
        cluster: All ranks.
        rank: This one.
        same_shard: The ranks that plans number, in their order.
        replicas: Those that hold the same shard of the same stage, by replica.
        shards: Those of the same stage of the same replica, by shard.
        same_replica: Those of the same replica.
        store: Where they met; the groups may call it for as long as they exist.
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
    """Joins the ranks of a cluster; all ranks together, one cluster at a time.

    Args:
        backend: What carries tensors.
        cluster: All ranks.
        rank: This one.
        store: Where the ranks tell each other their addresses.
        timeout_s: After which torch itself ends a rank that waits; counts from when the rank has
            asked for what it waits for.
    """
    # Its dumps in /tmp would stay behind, and threads would ask the store for as long as NCCL is
    # there; the watchdog of the package says more.
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
    """Leaves all groups; all ranks together."""
    distributed.destroy_process_group()


def _own_group(
    cluster: Cluster, rank: int, timeout: timedelta, part_of: Callable[[int], int]
) -> ProcessGroup:
    """The ranks of this rank's part. Everybody makes the groups of all parts, as torch wants."""
    ranks = range(cluster.n_ranks)
    groups = {
        part: distributed.new_group([r for r in ranks if part_of(r) == part], timeout=timeout)
        for part in sorted({part_of(r) for r in ranks})
    }
    own = groups[part_of(rank)]
    if not isinstance(own, ProcessGroup):
        raise TypeError(f"torch left rank {rank} out of its own group")
    return own
