"""Program of two ranks on one device: transfers, training, or dying while the other waits.

mpiexec -n 2 python -m mpi4py -m gpu.two_ranks_program compare|kill
"""

import os
import signal
import sys
import time

import torch
from tests.examples.pipeline_training import assert_equal
from tests.examples.training_case import SHAPE
from tests.mpi.test_training import BATCHES, own_part, train

from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.rank.channels import open_torch_channels
from dynapipe_hpc.job.job import Job, open_job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from gpu.device import backend_of, find_device, library_bytes, wait_for
from gpu.finding import note

LIMIT_S = 30.0
CLUSTER = Cluster(n_stages=2, device_memory_bytes=1_000_000)
SIZES = (1, 1000, 1 << 20, 1 << 23)


def main(what: str) -> None:
    device = find_device()
    backend = backend_of(device)
    with open_job() as job:
        before = library_bytes(device)
        job.barrier()
        channels = open_torch_channels(
            backend, job, CLUSTER, device, dtype=torch.float64, holders=(), timeout_s=LIMIT_S
        )
        wait_for(device)
        job.barrier()
        if job.is_first:
            note("memory of both ranks' communicators", library_bytes(device) - before)
        if what == "kill":
            die(job, channels.transport, device)
        right = sum(exchange(job, channels.transport, n, device) for n in SIZES)
        if job.is_first:
            note("transfers both ways that arrive", right, str(len(SIZES)), right == len(SIZES))
        outcome, splits = train(SHAPE, CLUSTER, BATCHES, channels, device)
        assert_equal(outcome, own_part(SHAPE, splits))
        if job.is_first:
            note("weights after three steps", "equal", "those of one process", True)
        channels.close()


def exchange(job: Job, transport: Transport[torch.Tensor], n: int, device: torch.device) -> bool:
    """Sends an activation up and a gradient down at the same time; whether they arrived."""
    peer = 1 - job.rank
    sent, awaited = (Payload.ACTIVATION, Payload.GRADIENT)[:: 1 if job.is_first else -1]
    values = torch.arange(n, dtype=torch.float64, device=device)

    def send() -> None:
        transport.start_send(n, sent, peer, values + job.rank)

    if job.is_first:
        send()
    transport.start_receive(n, awaited, peer, (n,), slot=0)
    if not job.is_first:
        send()
    received = transport.wait_receive(n, awaited)
    transport.wait_send(n, sent)
    return torch.equal(received, values + peer)


def die(job: Job, transport: Transport[torch.Tensor], device: torch.device) -> None:
    """Rank 1 is killed while rank 0 waits for it."""
    if not job.is_first:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.start_receive(0, Payload.GRADIENT, 1, (1,), slot=0)
    transport.wait_receive(0, Payload.GRADIENT)
    wait_for(device)


if __name__ == "__main__":
    main(sys.argv[1])
