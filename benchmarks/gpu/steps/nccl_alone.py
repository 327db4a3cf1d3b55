"""NCCL on one rank: every collective operation, and an end without a hang."""

import time
from dataclasses import replace

import torch
from torch import distributed

from dynapipe_hpc.executor.transport.rendezvous import rendezvous
from dynapipe_hpc.executor.transport.torch_distributed import (
    TorchCollectives,
    TorchGroups,
    close_groups,
    open_groups,
)
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import Collectives
from gpu.device import backend_of, find_device, library_bytes, wait_for
from gpu.finding import note

LIMIT_S = 20.0
SIZES = (1, 1000, 1 << 24)
ALONE = Cluster(device_memory_bytes=1)


def main() -> None:
    device = find_device()
    before = library_bytes(device)
    with open_job() as job:
        with rendezvous(job.comm, LIMIT_S) as store:
            started_s = time.monotonic()
            groups = open_groups(backend_of(device), ALONE, 0, store, timeout_s=LIMIT_S)
            collectives = TorchCollectives(with_all_groups(groups))
            n_right = sum(is_unchanged(collectives, n, device) for n in SIZES)
            note("connected and summed in s", time.monotonic() - started_s)
        note("sums of one rank change nothing", n_right, str(len(SIZES)), n_right == len(SIZES))
        note("memory of libraries in bytes", library_bytes(device) - before)
        started_s = time.monotonic()
        close_groups()
        store.free()
        closed_s = time.monotonic() - started_s
        note("closed in s", closed_s, "< 5", closed_s < 5)


def with_all_groups(groups: TorchGroups) -> TorchGroups:
    """The groups of one rank, all of them that of the job; a run has none for one member."""
    world = distributed.group.WORLD
    return replace(groups, replicas=world, shards=world, same_replica=world)


def is_unchanged(collectives: Collectives, n: int, device: torch.device) -> bool:
    """Whether operations over one rank leave numbers as they are."""
    values = torch.arange(n, dtype=torch.float32, device=device)
    expected = values.clone()
    collectives.sum_over_replicas(values)
    collectives.start_sum_over_replicas(values)()
    collectives.sum_share_over_replicas(values)
    collectives.gather_shares(values)
    collectives.sum_within_replica(values)
    over_shards = collectives.sum_over_shards(values)
    wait_for(device)
    return torch.equal(values, expected) and torch.equal(over_shards, expected)


if __name__ == "__main__":
    main()
