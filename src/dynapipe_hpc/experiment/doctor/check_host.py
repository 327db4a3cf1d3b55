"""Hosts of a job: memory, shared memory, and access to it through which plans travel."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.doctor.check_software import computes_on_gpus
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import usable_bytes
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.plan_store import PlannerTurns
from dynapipe_hpc.store.progress import ProgressThread, wait_for_quiet
from dynapipe_hpc.store.ring_layout import Memory, RingLayout

_GB = 1e9
_SHARED = Path("/dev/shm")  # noqa: S108 - a fact of Linux, not a place for files of ours
_CGROUPS = Path("/sys/fs/cgroup")
# Names of files that MPI libraries remove at the end of a job.
_LEFTOVERS = ("mpich_shm_*", "sm_segment.*", "osc_sm.*", "osc_rdma.*", "vader_segment.*")
_PROCESSES = Path("/proc")


def check_host(case: Case) -> Iterator[Finding]:
    """Memory, shared memory and leftovers of each host (collective); its first rank reports."""
    ranks = case.ranks_of_host
    if not case.on_host.is_first:
        return
    host = platform.node()
    yield _memory(case, host, len(ranks))
    yield _shared_memory(case, host, ranks)
    yield from _leftovers(host)


def _memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject, usable = f"memory of {host}", usable_bytes()
    text = f"{usable / _GB:.1f} GB for {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    if case.config is None or computes_on_gpus(case.config):
        return Finding(subject, text)
    each = case.config.cluster.device_memory_bytes
    text += f", which may use {each / _GB:.1f} GB each (cluster.device_memory_bytes)"
    if n_ranks * each <= usable:
        return Finding(subject, text)
    lower = f"{text}: more than the host has; lower it to {usable // n_ranks:,} or use more hosts"
    return Finding(subject, lower, Level.PROBLEM)


def _shared_memory(case: Case, host: str, ranks: list[int]) -> Finding:
    subject = f"{_SHARED} of {host}"
    try:
        free_bytes = shutil.disk_usage(_SHARED).free
    except OSError as error:
        return Finding(subject, f"cannot be used: {error.strerror}; mount it", Level.PROBLEM)
    needed = _store_bytes(case, ranks)
    text = f"{free_bytes / 1e6:,.0f} MB free, of which plans take up to {needed / 1e6:,.0f} MB"
    if needed <= free_bytes or "OMPI_MCA_osc_sm_backing_directory" in os.environ:
        return Finding(subject, text)
    return Finding(
        subject,
        f"{text}; make it larger (containers: --shm-size), lower store.plan_bytes or "
        "store.look_ahead, or let Open MPI use a local folder: OMPI_MCA_osc_sm_backing_directory",
        Level.PROBLEM,
    )


def _store_bytes(case: Case, ranks: list[int]) -> int:
    store = case.config.store if case.config else StoreConfig()
    n_ranks = case.config.cluster.n_ranks if case.config else case.job.size
    capacity = PlannerTurns(n_ranks, store.look_ahead).capacity
    return RingLayout(len(ranks), capacity, store.plan_bytes).ring_bytes


def _leftovers(host: str) -> Iterator[Finding]:
    # Sizes first: a job that ends meanwhile removes its files.
    files = [f for pattern in _LEFTOVERS for f in _SHARED.glob(pattern)]
    sizes = {file: size for file in files if (size := _size_of_ours(file)) is not None}
    left = sorted(set(sizes) - _mapped_files())
    if left:
        size = sum(sizes[file] for file in left)
        names = " ".join(str(file) for file in left[:3]) + (" ..." if len(left) > 3 else "")
        yield Finding(
            f"left on {host}",
            f"{len(left)} files of MPI jobs that were killed, {size / 1e6:.0f} MB; remove them: "
            f"rm {names}",
            Level.WARNING,
        )


def _size_of_ours(file: Path) -> int | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size if status.st_uid == os.getuid() else None


def _mapped_files() -> set[Path]:
    mapped: set[Path] = set()
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # the process has ended, or belongs to another user
            continue
        mapped.update(Path(line[line.index("/dev/") :]) for line in lines if str(_SHARED) in line)
    return mapped


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
