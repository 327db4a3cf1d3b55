"""NCCL on one rank: every collective operation, and an end without a hang."""

import time

import torch

from dynapipe_hpc.experiment.rank.channels import open_torch_channels
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import Collectives
from gpu.device import backend_of, find_device, library_bytes, wait_for
from gpu.finding import found

LIMIT_S = 20.0
SIZES = (1, 1000, 1 << 24)
ALONE = Cluster(device_memory_bytes=1)


def main() -> None:
    device = find_device()
    before = library_bytes(device)
    backend = backend_of(device)
    with open_job() as job:
        started_s = time.monotonic()
        channels = open_torch_channels(backend, job, ALONE, device, torch.bfloat16, (), LIMIT_S)
        found("connected in s", time.monotonic() - started_s)
        n_right = sum(is_unchanged(channels.collectives, n, device) for n in SIZES)
        found("sums of one rank change nothing", n_right, str(len(SIZES)), n_right == len(SIZES))
        found("memory of libraries in bytes", library_bytes(device) - before)
        started_s = time.monotonic()
        channels.close()
        found("closed in s", time.monotonic() - started_s, "< 5", time.monotonic() - started_s < 5)


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
