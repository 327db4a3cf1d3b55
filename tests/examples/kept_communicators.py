"""Whether channels leave communicators behind when they are closed."""

from collections.abc import Callable, Sequence

import pytest
import torch
from mpi4py import MPI

from dynapipe_hpc.experiment.doctor.examine import Case
from dynapipe_hpc.experiment.rank.channels import Channels, open_channels, open_torch_channels
from dynapipe_hpc.experiment.rank.devices import RankDevice
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster

WORLD = MPI.COMM_WORLD
SIZE = WORLD.Get_size()
PIPELINE = Cluster(n_stages=SIZE, device_memory_bytes=1)
REPLICAS = Cluster(n_replicas=SIZE, device_memory_bytes=1)
PAIRS = [(stage, stage + 1) for stage in reversed(range(SIZE - 1))]
CPU = torch.device("cpu")
N_TIMES = 3


def over_mpi() -> None:
    channels = open_channels(
        Job(WORLD), PIPELINE, RankDevice(CPU), torch.float32, holders=PAIRS, timeout_s=60
    )
    use_and_close(channels, PAIRS)


def over_gloo() -> None:
    job = Job(WORLD)
    use_and_close(
        open_torch_channels(
            "gloo", job, REPLICAS, CPU, dtype=torch.float32, holders=(), timeout_s=60
        ),
        (),
    )


def of_the_doctor() -> None:
    Case.from_arguments(Job(WORLD), None, [], None).close()


KINDS = (over_mpi, over_gloo, of_the_doctor)


def check_nothing_is_kept(use: Callable[[], None]) -> None:
    """Checks that communicators do not become more; all ranks together."""
    handles = set()
    for _ in range(N_TIMES):
        use()
        handles.add(next_handles())
    assert len(handles) == 1


def use_and_close(channels: Channels, pairs: Sequence[tuple[int, int]]) -> None:
    number = torch.ones(1)
    for stages in pairs:
        if channels.collectives.stage in stages:
            channels.collectives.sum_over_copies(number, stages)
    channels.collectives.sum_within_replica(number)
    channels.close()


def next_handles() -> frozenset[int]:
    """Handles of new communicators, of which Open MPI gives the lowest that are free."""
    if not MPI.Get_library_version().startswith("Open MPI"):
        pytest.skip("only Open MPI numbers communicators in order")
    comms = [WORLD.Dup() for _ in range(16)]
    handles = frozenset(comm.py2f() for comm in comms)
    for comm in comms:
        comm.Free()
    return handles
