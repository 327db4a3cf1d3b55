"""Memory through which plans travel: correctness, latency and progress."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.progress import ProgressThread, wait_for_quiet
from dynapipe_hpc.store.ring_layout import Memory

_BLOCK_BYTES = 65536
_N_TIMED = 30
_BUSY_S = 0.1
_LATE_MS = 50.0
_TRIES = 2


def check_access(case: Case) -> Iterator[Finding]:
    """Tries shared memory, and one-sided access between the first ranks of hosts (collective)."""
    first_ranks = case.job.divide(int(case.on_host.is_first))
    try:
        near = HostMemory(case.on_host.comm.Dup(), _BLOCK_BYTES)
        yield from _exchange("within a host", case.on_host, near)
        if case.on_host.is_first and first_ranks.size > 1:
            yield from _between_hosts(first_ranks, near.part(0))
    except RunError as error:
        yield Finding("memory", str(error), Level.PROBLEM)
        return
    case.job.barrier()
    near.close()
    first_ranks.free()


def _between_hosts(first_ranks: Job, memory: memoryview) -> Iterator[Finding]:
    far = MpiMemory(first_ranks.comm.Dup(), memory)
    yield from _exchange("between hosts", first_ranks, far)
    for name, compute in (("beside matrix products", _multiply), ("beside Python", _count)):
        yield _progress(first_ranks, far, name, compute)
    far.close()


def _exchange(subject: str, job: Job, memory: Memory) -> Iterator[Finding]:
    """Each rank writes a block to the next rank and reads it back; that one finds it."""
    rank, to = job.rank, (job.rank + 1) % job.size
    job.barrier()
    memory.write(to, 0, _block(rank))
    block = partial(memory.read, to, 0, _BLOCK_BYTES)
    right = block() == _block(rank)
    job.barrier()
    right &= memory.read(rank, 0, _BLOCK_BYTES) == _block((rank - 1) % job.size)
    own_us = _median_us(partial(memory.read, to, 0, 8)), _median_us(block)
    word_us, block_us = job.all_reduce_max(own_us)
    n_wrong = sum(job.all_gather_int(int(not right)))
    if n_wrong:
        yield Finding(
            subject,
            f"{n_wrong} ranks find other bytes than were written; use another MPI library, or "
            "another of its one-sided components (Open MPI: OMPI_MCA_osc)",
            Level.PROBLEM,
        )
    elif job.is_first:
        yield Finding(
            subject, f"all bytes arrive; a word in {_time(word_us)}, 64 KiB in {_time(block_us)}"
        )


def _block(rank: int) -> bytes:
    return np.random.default_rng(rank).bytes(_BLOCK_BYTES)


def _time(us: float) -> str:
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.1f} ms"


def _median_us(access: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_N_TIMED):
        started_s = time.perf_counter()
        access()
        times_s.append(time.perf_counter() - started_s)
    return 1e6 * median(times_s)


def _progress(job: Job, memory: MpiMemory, name: str, compute: Callable[[], object]) -> Finding:
    """Progress of one-sided access to the first rank while that computes."""
    alone_ms = _waited_ms(job, memory, compute)
    if alone_ms < _LATE_MS:
        return Finding(name, f"answered in {alone_ms:.2g} ms")
    helper = ProgressThread(memory.enter_mpi) if job.is_first else None
    helped_ms = _waited_ms(job, memory, compute)
    if helper is not None:
        helper.stop()
    text = f"no answer in {1e3 * _BUSY_S:.0f} ms; with a progress thread in {helped_ms:.2g} ms"
    if helped_ms < _LATE_MS:
        return Finding(name, f"{text}; runs start one if needed (store.progress)")
    return Finding(
        name,
        f"{text}: plans will be late unless store.look_ahead hides it; give every rank one core "
        "more than its threads, or use a network with remote memory access",
        Level.WARNING,
    )


def _waited_ms(job: Job, memory: MpiMemory, compute: Callable[[], object]) -> float:
    """The shorter of two waiting times, as the machine may be busy."""

    def access(owner: int) -> None:
        memory.read(owner, 0, _BLOCK_BYTES)
        memory.write(owner, 0, bytes(8))

    return min(wait_for_quiet(job.comm, 0, access, compute) for _ in range(_TRIES))


def _multiply() -> None:
    matrix, end_s = np.ones((200, 200)), time.perf_counter() + _BUSY_S
    while time.perf_counter() < end_s:
        matrix @ matrix


def _count() -> None:
    end_s = time.perf_counter() + _BUSY_S
    while time.perf_counter() < end_s:
        pass
