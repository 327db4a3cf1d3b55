"""Channels that carry a rank's tensors to other ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynapipe_hpc.executor.transport.mpi import MpiCollectives, MpiTransport
from dynapipe_hpc.executor.transport.rendezvous import rendezvous
from dynapipe_hpc.executor.transport.torch_distributed import (
    Backend,
    Holders,
    TorchCollectives,
    TorchGroups,
    TorchTransport,
    close_groups,
    open_groups,
)
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import RankDevice, dtype_of
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.tied_copies import Tied, paired_stages


@dataclass(frozen=True, slots=True)
class Channels:
    """Connections of a rank to all ranks, and to those of its shard, numbered as in plans.

    `close` is called by all ranks together.
    """

    collectives: Collectives
    transport: Transport[Tensor]
    close: Callable[[], None]


# The watchdog must come first, as it reports where all ranks are.
_AFTER_WATCHDOG_S = 120.0
# NCCL connects when an algorithm is used first, and chooses another one for large tensors.
_LARGE_NUMBERS = 8 << 20


def connect(config: ExperimentConfig, tied: Tied, job: Job, on: RankDevice) -> Channels:
    """Opens the channels of a job with all ranks, or with the ranks of one stage (collective)."""
    one_stage = config.cluster.model_copy(update={"n_replicas": 1, "n_stages": 1})
    cluster = config.cluster if job.size == config.cluster.n_ranks else one_stage
    timeout_s = config.executor.timeout_s
    return open_channels(
        job, cluster, on, dtype_of(config), holders=paired_stages(tied), timeout_s=timeout_s
    )


def open_channels(
    job: Job,
    cluster: Cluster,
    on: RankDevice,
    dtype: torch.dtype,
    *,
    holders: Holders,
    timeout_s: float,
) -> Channels:
    """Connects the ranks of a cluster; all ranks together.

    MPI carries CPU tensors and, through the host, tensors of GPUs that ranks share; NCCL carries
    tensors if every rank has a GPU to itself. Stages that are `holders` of tied weights exchange
    them in pairs.
    """
    if on.device.type == "cuda" and not on.is_shared:
        return open_torch_channels(
            "nccl", job, cluster, on.device, dtype=dtype, holders=holders, timeout_s=timeout_s
        )
    collectives = MpiCollectives(job.comm, cluster)
    same_shard = job.divide(cluster.shard_of(job.rank))
    copied_to = None if on.device.type == "cpu" else on.device
    transport = MpiTransport(same_shard.comm, dtype, copied_to)
    same_shard.free()  # the transport has a duplicate

    def close() -> None:
        transport.close()
        collectives.close()

    return Channels(collectives, transport, close)


def open_torch_channels(
    backend: Backend,
    job: Job,
    cluster: Cluster,
    device: torch.device,
    *,
    dtype: torch.dtype,
    holders: Holders,
    timeout_s: float,
) -> Channels:
    """Connects the ranks through torch.distributed; see `open_channels`."""
    limit_s = timeout_s + _AFTER_WATCHDOG_S
    with rendezvous(job.comm, timeout_s) as store:
        groups = open_groups(backend, cluster, job.rank, store, timeout_s=limit_s)
        channels = connect_groups(groups, device, dtype, holders)

    def close() -> None:
        channels.close()
        store.free()

    return replace(channels, close=close)


def connect_groups(
    groups: TorchGroups, device: torch.device, dtype: torch.dtype, holders: Holders
) -> Channels:
    """Connects the ranks of open groups to each other; called by all ranks together."""
    transport = TorchTransport(groups.transfers, device, dtype)
    transport.connect(neighbours(groups.cluster, groups.rank))
    collectives = TorchCollectives(groups)
    # Each collective runs once, as the first is slow, takes memory and creates connections, which
    # needs all ranks and cannot happen during a plan.
    n_replicas = collectives.n_replicas
    for n in (1,) if device.type == "cpu" else (1, _LARGE_NUMBERS):
        numbers = torch.zeros(-(-n // n_replicas) * n_replicas, device=device)
        collectives.sum_over_replicas(numbers)
        collectives.sum_share_over_replicas(numbers)
        collectives.gather_shares(numbers)
        collectives.sum_over_shards(numbers)
        if collectives.sequence_parallel:
            collectives.sum_own_over_shards(collectives.gather_over_shards(numbers))
    number = torch.zeros(1, device=device)
    collectives.sum_within_replica(number)
    for stages in holders:
        if collectives.stage in stages:
            collectives.sum_over_copies(number, stages)
            collectives.copy_from_first(number, stages)
    return Channels(collectives, transport, close_groups)


def neighbours(cluster: Cluster, rank: int) -> list[int]:
    """Ranks of the neighbouring stages as plans number them, in the order in which they connect.

    Even stages begin with the next stage and odd ones with the previous, so that all pairs of a
    pipeline connect in two rounds, however many stages there are.
    """
    plan, stage = cluster.plan_of(rank), cluster.stage_of(rank)
    steps = (-1, 1) if stage % 2 else (1, -1)
    return [plan + step for step in steps if 0 <= stage + step < cluster.n_stages]
