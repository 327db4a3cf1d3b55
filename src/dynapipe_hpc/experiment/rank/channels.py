"""How a rank's tensors reach other ranks."""

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
    """What connects a rank.

    Attributes:
        collectives: Over all ranks.
        transport: To the ranks of this rank's shard, which plans number.
        close: Leaves the other ranks in good order; all ranks together.
    """

    collectives: Collectives
    transport: Transport[Tensor]
    close: Callable[[], None]


# The watchdog is to speak first: it says where all ranks are.
_AFTER_WATCHDOG_S = 120.0

Holders = Sequence[tuple[int, ...]]
"""Of every weight that several stages hold, those stages."""


def open_channels(
    job: Job,
    cluster: Cluster,
    on: RankDevice,
    dtype: torch.dtype,
    holders: Holders,
    timeout_s: float,
) -> Channels:
    """Connects the ranks of a cluster; all ranks together.

    MPI carries what is on processors, and on GPUs that ranks share, through the host; NCCL what is
    on GPUs of their own.

    Args:
        job: The ranks.
        cluster: How they are numbered.
        on: The device of this rank.
        dtype: Of the tensors between stages.
        holders: Stages that exchange weights and their gradients.
        timeout_s: After which the watchdog ends a rank that waits.
    """
    if on.device.type == "cuda" and not on.is_shared:
        return open_torch_channels("nccl", job, cluster, on.device, dtype, holders, timeout_s)
    collectives = MpiCollectives(job.comm, cluster)
    transport = MpiTransport(job.divide(cluster.shard_of(job.rank)).comm, dtype)
    channels = Channels(collectives, transport, close=lambda: None)
    return channels if on.device.type == "cpu" else through_host(channels, on.device)


def through_host(inner: Channels, device: torch.device) -> Channels:
    """Carries tensors of a device over what carries CPU tensors."""
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
    """Sums a number over every group: the first sum takes long, and memory.

    It is also what makes ranks meet, which they cannot do later.
    """
    number = torch.zeros(1, device=device)
    collectives.sum_over_replicas(number)
    collectives.sum_over_shards(number)
    collectives.sum_within_replica(number)
    for stages in holders:
        if collectives.stage in stages:
            collectives.sum_over_copies(number, stages)
