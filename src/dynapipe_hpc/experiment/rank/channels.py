"""Channels that carry a rank's tensors to other ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dynapipe_hpc.executor.transport.mpi_collectives import MpiCollectives
from dynapipe_hpc.executor.transport.mpi_transport import MpiTransport
from dynapipe_hpc.executor.transport.rendezvous import rendezvous
from dynapipe_hpc.executor.transport.staged import StagedCollectives, StagedTransport
from dynapipe_hpc.executor.transport.torch_collectives import TorchCollectives
from dynapipe_hpc.executor.transport.torch_groups import Backend, close_groups, open_groups
from dynapipe_hpc.executor.transport.torch_transport import TorchTransport
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.rank.devices import RankDevice
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import Collectives


@dataclass(frozen=True, slots=True)
class Channels:
    """The connections of a rank.

    Attributes:
        collectives: Collective operations over all ranks.
        transport: Point-to-point transport between the ranks of this rank's shard, numbered as in
            plans.
        close: Function that closes the connections; all ranks together.
    """

    collectives: Collectives
    transport: Transport[Tensor]
    close: Callable[[], None]


# The watchdog must come first, as it reports where all ranks are.
_AFTER_WATCHDOG_S = 120.0

Holders = Sequence[tuple[int, ...]]
"""Stages that hold the same (tied) weight, for each such weight."""


def open_channels(
    job: Job,
    cluster: Cluster,
    on: RankDevice,
    dtype: torch.dtype,
    holders: Holders,
    timeout_s: float,
) -> Channels:
    """Connects the ranks of a cluster; all ranks together.

    MPI carries CPU tensors and, through the host, tensors of GPUs that ranks share; NCCL carries
    tensors if every rank has a GPU to itself.

    Args:
        job: The ranks.
        cluster: The cluster, which numbers the ranks.
        on: The device of this rank.
        dtype: Type of the tensors between stages.
        holders: Stages that exchange tied weights and their gradients.
        timeout_s: Time after which the watchdog ends a rank that waits.
    """
    if on.device.type == "cuda" and not on.is_shared:
        return open_torch_channels("nccl", job, cluster, on.device, dtype, holders, timeout_s)
    collectives = MpiCollectives(job.comm, cluster)
    transport = MpiTransport(job.divide(cluster.shard_of(job.rank)).comm, dtype)
    channels = Channels(collectives, transport, close=lambda: None)
    return channels if on.device.type == "cpu" else through_host(channels, on.device)


def through_host(inner: Channels, device: torch.device) -> Channels:
    """Channels for tensors of a device, staged through the host over those for CPU tensors."""
    return Channels(
        StagedCollectives(inner.collectives),
        StagedTransport(inner.transport, device),
        inner.close,
    )


def open_torch_channels(
    backend: Backend,
    job: Job,
    cluster: Cluster,
    device: torch.device,
    dtype: torch.dtype,
    holders: Holders,
    timeout_s: float,
) -> Channels:
    """Connects the ranks through torch.distributed; as `open_channels`."""
    limit_s = timeout_s + _AFTER_WATCHDOG_S
    with rendezvous(job.comm, timeout_s) as store:
        groups = open_groups(backend, cluster, job.rank, store, limit_s)
        transport = TorchTransport(groups.same_shard, device, dtype)
        plan, stage = cluster.plan_of(job.rank), cluster.stage_of(job.rank)
        transport.connect(plan + step for step in (-1, 1) if 0 <= stage + step < cluster.n_stages)
        collectives = TorchCollectives(groups)
        _connect(collectives, holders, device)
    return Channels(collectives, transport, close_groups)


def _connect(collectives: TorchCollectives, holders: Holders, device: torch.device) -> None:
    """All-reduces a number over every group, as the first all-reduce is slow and takes memory.

    It also creates the connections, which needs all ranks and cannot happen during a plan.
    """
    number = torch.zeros(1, device=device)
    collectives.sum_over_replicas(number)
    collectives.sum_over_shards(number)
    collectives.sum_within_replica(number)
    for stages in holders:
        if collectives.stage in stages:
            collectives.sum_over_copies(number, stages)
