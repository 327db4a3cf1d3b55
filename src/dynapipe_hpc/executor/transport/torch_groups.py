"""Process groups of torch.distributed, opened once per job."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from torch import distributed
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload

Backend = Literal["nccl", "gloo", "fake"]

TRANSFER_CTAS = 4
"""Most blocks of a transfer's kernel. A kernel that waits for data holds multiprocessors, and NCCL
would start 16 blocks for a tensor of a few megabytes."""


@dataclass(frozen=True, slots=True)
class TorchGroups:
    """Process groups that a rank belongs to; a group that would have one member is None.

    Attributes:
        transfers: Ranks with the same shard number, in the order of plans, by what is sent between
            stages; empty if there is one stage and one replica. A pair of ranks has a
            communicator and a stream per group, so that a gradient that is late does not hold up an
            activation.
        replicas: Data-parallel ranks: the same shard of the same stage, by replica.
        shards: Tensor-parallel ranks: the same stage of the same replica, by shard.
        same_replica: Ranks of the same replica.
        store: Store of the rendezvous; the groups may call it as long as they exist.
    """

    cluster: Cluster
    rank: int
    transfers: Mapping[Payload, ProcessGroup]
    replicas: ProcessGroup | None
    shards: ProcessGroup | None
    same_replica: ProcessGroup | None
    store: Store


def open_groups(
    backend: Backend, cluster: Cluster, rank: int, store: Store, *, timeout_s: float
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
    # Otherwise torch ends the process after 480 s in which its own watchdog has not come forward.
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(2 * int(timeout_s)))
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=cluster.n_ranks, timeout=timeout
    )

    def own_group(part_of: Callable[[int], int], *, transfers: bool = False) -> ProcessGroup | None:
        options = _transfer_options(backend, timeout) if transfers else None
        return _own_group(cluster, rank, part_of, timeout, options=options)

    pairs = {payload: own_group(cluster.shard_of, transfers=True) for payload in Payload}
    return TorchGroups(
        cluster,
        rank,
        transfers={payload: group for payload, group in pairs.items() if group is not None},
        replicas=own_group(lambda r: cluster.stage_of(r) * cluster.n_shards + cluster.shard_of(r)),
        shards=own_group(cluster.plan_of),
        same_replica=own_group(cluster.replica_of),
        store=store,
    )


def close_groups() -> None:
    """Closes all groups; called by all ranks together."""
    distributed.destroy_process_group()


def _transfer_options(backend: Backend, timeout: timedelta) -> Any:
    """Options of the groups of transfers, which NCCL alone has."""
    if backend != "nccl":
        return None
    options = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout  # torch warns if it differs from that of the group
    options.config.max_ctas = TRANSFER_CTAS
    return options


def _own_group(
    cluster: Cluster, rank: int, part_of: Callable[[int], int], timeout: timedelta, *, options: Any
) -> ProcessGroup | None:
    """The group of this rank's part; None if parts, which are equally large, have one member."""
    members = [each for each in range(cluster.n_ranks) if part_of(each) == part_of(rank)]
    if len(members) == 1:
        return None
    # Without local synchronization, every rank would have to create the groups of all parts.
    own_group = distributed.new_group(
        members, timeout=timeout, pg_options=options, use_local_synchronization=True
    )
    if not isinstance(own_group, ProcessGroup):
        raise TypeError(f"torch left rank {rank} out of its own group")
    return own_group
