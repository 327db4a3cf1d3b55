"""Collectives and transfers between ranks, and how ranks meet."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from tests.examples.kept_communicators import KINDS, check_nothing_is_kept
from tests.examples.transports import check_collectives
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from dynapipe_hpc.executor.transport import mpi
from dynapipe_hpc.executor.transport.mpi import MpiCollectives, MpiTransport
from dynapipe_hpc.executor.transport.rendezvous import Rendezvous, rendezvous
from dynapipe_hpc.executor.transport.torch_distributed import (
    TorchCollectives,
    TorchGroups,
    close_groups,
    open_groups,
)
from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.experiment.rank.channels import open_torch_channels
from dynapipe_hpc.job.job import Ending, Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
CPU = torch.device("cpu")
CLUSTERS = [
    Cluster(
        n_replicas=SIZE // (n_stages * n_shards),
        n_stages=n_stages,
        n_shards=n_shards,
        sequence_parallel=n_shards > 1,
        shard_sums="dtype" if n_shards == 4 else "float32",
        device_memory_bytes=1,
    )
    for n_stages in (1, 2, 4)
    for n_shards in (1, 2, 4)
    if SIZE % (n_stages * n_shards) == 0
]
every_cluster = pytest.mark.parametrize(
    "cluster", CLUSTERS, ids=lambda c: f"{c.n_replicas}x{c.n_stages}x{c.n_shards}"
)


@contextmanager
def gloo_groups(cluster: Cluster) -> Iterator[TorchGroups]:
    with rendezvous(WORLD, 60) as store:
        yield open_groups("gloo", cluster, RANK, store, timeout_s=60)
        close_groups()


@every_cluster
@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_NUMBERS", mpi.MAX_NUMBERS), ("MAX_NUMBERS", 3), ("to_host", Tensor.clone)],
)
def test_processes_keep_the_contract(
    cluster: Cluster, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one call takes so little that everything has to be cut, and through the host."""
    monkeypatch.setattr(mpi, name, value)
    check_collectives(MpiCollectives(WORLD, cluster), cluster, RANK)


@every_cluster
def test_process_groups_keep_the_contract(cluster: Cluster) -> None:
    with gloo_groups(cluster) as groups:
        check_collectives(TorchCollectives(groups), cluster, RANK)


ACTIVATION, GRADIENT = Payload.ACTIVATION, Payload.GRADIENT
at_least_two = pytest.mark.skipif(SIZE < 2, reason="needs two ranks")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n_rows", [1, 20_000])  # small, and too large to be sent at once
def test_tensors_go_round_a_ring_both_ways(dtype: torch.dtype, n_rows: int) -> None:
    transport = MpiTransport(WORLD, dtype)
    before, behind = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    shape = (n_rows, 2, 8)
    transport.start_receive(0, ACTIVATION, before, shape, slot=0)
    transport.start_send(0, ACTIVATION, behind, torch.full(shape, float(RANK), dtype=dtype))
    transport.start_receive(0, GRADIENT, behind, shape, slot=1)
    transport.start_send(0, GRADIENT, before, torch.full(shape, 10.0 + RANK, dtype=dtype))
    assert (transport.wait_receive(0, ACTIVATION) == before).all()
    assert (transport.wait_receive(0, GRADIENT) == 10 + behind).all()
    transport.wait_send(0, ACTIVATION)
    transport.wait_send(0, GRADIENT)


@at_least_two
@pytest.mark.parametrize("n_numbers", [1_000, 1_000_000])
def test_a_busy_sender_does_not_hold_up_what_it_sent(n_numbers: int) -> None:
    transport = MpiTransport(WORLD, torch.float32)
    for _ in range(2):  # the first message also connects the two
        WORLD.Barrier()
        waited_s = 0.0
        if RANK == 0:
            transport.start_send(0, ACTIVATION, 1, torch.ones(n_numbers))
            _compute(seconds=0.5)
            transport.wait_send(0, ACTIVATION)
        elif RANK == 1:
            started_s = time.perf_counter()
            transport.start_receive(0, ACTIVATION, 0, (n_numbers,), slot=0)
            transport.wait_receive(0, ACTIVATION)
            waited_s = time.perf_counter() - started_s
    assert waited_s < 0.3


def _compute(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


@at_least_two
@pytest.mark.parametrize(
    ("index", "payload", "n_numbers", "arrived"),
    [
        (2, GRADIENT, 5, "gradient 2 of 20 bytes"),
        (3, ACTIVATION, 2, "activation 3 of 8 bytes"),
        (3, ACTIVATION, 9, ".*TRUNCATE"),
    ],
)
def test_ranks_that_disagree_on_what_travels_are_told(
    index: int, payload: Payload, n_numbers: int, arrived: str
) -> None:
    transport = MpiTransport(WORLD, torch.float32)
    if RANK == 0:
        transport.start_send(index, payload, 1, torch.ones(n_numbers))
        transport.wait_send(index, payload)
    elif RANK == 1:
        transport.start_receive(3, ACTIVATION, 0, (5,), slot=0)
        expected = "rank 1 expected activation 3 of 20 bytes from rank 0, but got "
        with pytest.raises(TransportError, match=expected + arrived):
            transport.wait_receive(3, ACTIVATION)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_stages", [1, SIZE])
def test_sums_run_over_the_right_ranks_and_agree_bit_by_bit(
    dtype: torch.dtype, n_stages: int
) -> None:
    cluster = Cluster(n_stages=n_stages, n_replicas=SIZE // n_stages, device_memory_bytes=1)
    collectives = MpiCollectives(WORLD, cluster)
    parts = [torch.randn(1001, generator=torch.manual_seed(r), dtype=dtype) for r in range(SIZE)]
    mine = parts[RANK].clone()
    collectives.sum_over_replicas(mine)
    same = [parts[r] for r in range(SIZE) if cluster.stage_of(r) == cluster.stage_of(RANK)]
    torch.testing.assert_close(mine, torch.stack(same).sum(dim=0))
    bits = mine.numpy().tobytes()
    gathered = WORLD.allgather((cluster.stage_of(RANK), bits))
    assert all(others == bits for stage, others in gathered if stage == cluster.stage_of(RANK))


def test_numbers_that_mpi_cannot_add_are_refused() -> None:
    collectives = MpiCollectives(WORLD, Cluster(n_replicas=SIZE, device_memory_bytes=1))
    with pytest.raises(TypeError, match=r"cannot add torch\.bfloat16; convert to one of torch\.f"):
        collectives.sum_over_replicas(torch.ones(3, dtype=torch.bfloat16))


LAST = SIZE - 1
PIPELINE = Cluster(n_stages=SIZE, device_memory_bytes=1)


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
