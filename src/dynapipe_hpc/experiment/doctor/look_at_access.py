"""One-sided MPI access, which carries the plans: correctness, latency and progress."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np

from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.store.measure_progress import wait_for_quiet
from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.plan_store import PlanStoreError
from dynapipe_hpc.store.progress import ProgressThread

_BLOCK_BYTES = 65536
_N_TIMED = 30
_BUSY_S = 0.1
_LATE_MS = 50.0
_TRIES = 2


def look_at_access(case: Case) -> Iterator[Finding]:
    """Tries one-sided access, as the plan store uses it, between all ranks (collective)."""
    size = case.job.size
    try:
        memory = MpiMemory(case.job.comm, 8 * size + _BLOCK_BYTES)
    except PlanStoreError as error:
        yield Finding("memory", str(error), Level.PROBLEM)
        return
    yield _correctness(case, memory)
    yield from _latency(case, memory)
    if size > 1:
        for name, compute in (("beside matrix products", _multiply), ("beside Python", _count)):
            yield _progress(case, memory, name, compute)
    memory.close()


def _correctness(case: Case, memory: MpiMemory) -> Finding:
    """Each rank writes a word to every rank and a block to itself, then reads all of them."""
    rank, size = case.job.rank, case.job.size
    memory.write(rank, 8 * size, _block(rank))
    for owner in range(size):
        memory.write_word(owner, 8 * rank, 1 + rank)
    memory.wait_for_all()
    words = [memory.read_word(rank, 8 * other) for other in range(size)]
    wrong = [other for other in range(size) if words[other] != 1 + other]
    wrong += [o for o in range(size) if memory.read(o, 8 * size, _BLOCK_BYTES) != _block(o)]
    memory.wait_for_all()
    if not wrong:
        return Finding("correct", "all ranks wrote and read the memory of all")
    return Finding(
        "correct",
        f"the bytes read from rank {wrong[0]} are not those written; use another MPI library, or "
        "another of its one-sided components (Open MPI: OMPI_MCA_osc)",
        Level.PROBLEM,
    )


def _block(rank: int) -> bytes:
    return np.random.default_rng(rank).bytes(_BLOCK_BYTES)


def _latency(case: Case, memory: MpiMemory) -> Iterator[Finding]:
    """Latency to the next rank on this host and to the next on another; owners wait inside MPI."""
    near = set(case.ranks_of_host) - {case.job.rank}
    far = set(range(case.job.size)) - near - {case.job.rank}
    for name, owners in (("within a host", near), ("between hosts", far)):
        owner = min(owners, key=lambda o: (o - case.job.rank) % case.job.size, default=None)
        own_us = [0.0, 0.0]
        if owner is not None:
            block = partial(memory.read, owner, 8 * case.job.size, _BLOCK_BYTES)
            own_us = [_median_us(partial(memory.read_word, owner, 0)), _median_us(block)]
        memory.wait_for_all()
        word, block_us = (max(case.job.numbers_of_all(int(1e3 * us))) / 1e3 for us in own_us)
        if word:
            yield Finding(name, f"a word in {_time(word)}, 64 KiB in {_time(block_us)}")


def _time(us: float) -> str:
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.1f} ms"


def _median_us(access: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_N_TIMED):
        started_s = time.perf_counter()
        access()
        times_s.append(time.perf_counter() - started_s)
    return 1e6 * median(times_s)


def _progress(case: Case, memory: MpiMemory, name: str, compute: Callable[[], object]) -> Finding:
    """Progress of one-sided access to the first rank while that computes."""
    alone_ms = _waited_ms(case, memory, compute)
    if alone_ms < _LATE_MS:
        return Finding(name, f"answered in {alone_ms:.2g} ms")
    helper = ProgressThread(memory.enter_mpi) if case.job.is_first else None
    helped_ms = _waited_ms(case, memory, compute)
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


def _waited_ms(case: Case, memory: MpiMemory, compute: Callable[[], object]) -> float:
    """The shorter of two waiting times, as the machine may be busy."""

    def access(owner: int) -> None:
        memory.read_word(owner, 0)
        memory.read(owner, 8 * case.job.size, _BLOCK_BYTES)

    return min(wait_for_quiet(case.job.comm, 0, access, compute) for _ in range(_TRIES))


def _multiply() -> None:
    matrix, end_s = np.ones((200, 200)), time.perf_counter() + _BUSY_S
    while time.perf_counter() < end_s:
        matrix @ matrix


def _count() -> None:
    end_s = time.perf_counter() + _BUSY_S
    while time.perf_counter() < end_s:
        pass
