"""Ranks that connect, watch each other and close."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from tests.examples.kept_communicators import KINDS, check_nothing_is_kept
from torch._C._distributed_c10d import ProcessGroupGloo

from dynapipe_hpc.executor.transport.rendezvous import Rendezvous, rendezvous
from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.experiment.rank.channels import open_torch_channels
from dynapipe_hpc.job.job import Ending, Job
from dynapipe_hpc.plan.cluster import Cluster

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
LAST = SIZE - 1
CPU = torch.device("cpu")
PIPELINE = Cluster(n_stages=SIZE, device_memory_bytes=1)
at_least_two = pytest.mark.skipif(SIZE < 2, reason="needs two ranks")


def test_ranks_connect_in_a_folder_that_they_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc/self")  # which even root cannot write
    channels = open_torch_channels(
        "gloo", Job(WORLD), PIPELINE, CPU, dtype=torch.float32, holders=(), timeout_s=60
    )
    number = torch.tensor([1.0])
    channels.collectives.sum_within_replica(number)
    channels.close()
    assert number.item() == SIZE


def test_a_key_is_what_a_rank_has_set_before_or_after_it_is_asked_for() -> None:
    large = bytes(range(256)) * 1000
    with rendezvous(WORLD, 60) as store:
        if RANK == LAST:
            time.sleep(0.05)
            store.set("late", large)
        assert store.get("late") == large
        store.set(f"of {RANK}", str(RANK))
        store.wait([f"of {rank}" for rank in range(SIZE)])
        assert [store.get(f"of {rank}") for rank in range(SIZE)] == [
            b"%d" % rank for rank in range(SIZE)
        ]
        WORLD.Barrier()
        assert store.check(["late", "of 0"])
        assert not store.check(["late", "of nobody"])


def test_ranks_that_count_at_once_lose_nothing() -> None:
    with rendezvous(WORLD, 60) as store:
        sums = [store.add("count", RANK + 1) for _ in range(50)]
        WORLD.Barrier()
        total = 50 * SIZE * (SIZE + 1) // 2
        assert store.add("count", 0) == total
        assert len({each for of_rank in WORLD.allgather(sums) for each in of_rank}) == 50 * SIZE
        assert store.get("count") == b"%d" % total


def test_a_rank_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with rendezvous(WORLD, 60) as store:
        start_s = time.monotonic()
        with pytest.raises(TransportError, match=rf"rank {RANK} waited 0.2 s for 'of no"):
            store.wait(["of nobody"], timedelta(seconds=0.2))
        assert time.monotonic() - start_s < 10
    with rendezvous(WORLD, 0.2) as store, pytest.raises(TransportError, match=r"0\.2 s"):
        store.get("of nobody")


@at_least_two
def test_a_group_says_that_a_rank_does_not_come() -> None:
    with rendezvous(WORLD, 0.5) as store:
        if RANK != LAST:
            with pytest.raises(TransportError, match=rf"waited 0.5 s for '0/{LAST}'"):
                ProcessGroupGloo(store, RANK, SIZE, timedelta(seconds=60))
        WORLD.Barrier()


@at_least_two
def test_a_rank_that_does_not_connect_is_named() -> None:
    store = Rendezvous(WORLD, 0.5)
    if RANK == 0:
        with pytest.raises(TransportError, match=rf"0.5 s for 'rank {LAST} has connected'"):
            store.leave()
    elif RANK != LAST:
        store.leave()
    WORLD.Barrier()
    store.close()


@pytest.mark.parametrize("use", KINDS)
def test_what_is_closed_keeps_no_communicators(use: Callable[[], None]) -> None:
    check_nothing_is_kept(use)


def test_one_rank_may_say_why_the_job_ends(tmp_path: Path) -> None:
    ending = Ending()
    folder = WORLD.bcast(tmp_path)
    with ending.recorded(folder / "ended.json"):
        claims = WORLD.allgather([ending.claim(), ending.claim()])
    assert sum(first for first, _ in claims) == 1
    assert not any(second for _, second in claims)
