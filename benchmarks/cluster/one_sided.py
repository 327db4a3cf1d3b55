"""One-sided accesses: how long they take, whether they need the owner's help, and atomic ones."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI

PLAN_BYTES = 50_000
N_ACCESSES = 200
QUIET_S = 1.0
N_CLAIMS = 100
ATOMIC_HINTS = {
    "accumulate_ops": "same_op_no_op",
    "which_accumulate_ops": "sum,no_op",
    "accumulate_max_bytes": "8",
    "acc_single_intrinsic": "true",
}

Access = Callable[[MPI.Win, int], object]
_WORD, _FOUND, _PLAN = np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(PLAN_BYTES, np.uint8)
ACCESSES: Mapping[str, Access] = {
    "put 8 B": lambda window, owner: window.Put(_WORD, owner, 8),
    "get 8 B": lambda window, owner: window.Get(_FOUND, owner, 8),
    "put 50 kB": lambda window, owner: window.Put(_PLAN, owner, 64),
    "get 50 kB": lambda window, owner: window.Get(_PLAN, owner, 64),
    "fetch and add": lambda window, owner: window.Fetch_and_op(_WORD, _FOUND, owner, 16, MPI.SUM),
}


def _sleep() -> None:
    time.sleep(QUIET_S)


def _compute() -> None:
    matrix = np.ones((300, 300))
    end_s = time.monotonic() + QUIET_S
    while time.monotonic() < end_s:
        matrix @ matrix


OWNERS: Mapping[str, Callable[[], None] | None] = {
    "inside MPI": None,
    "asleep": _sleep,
    "computing": _compute,
}


def accesses(job: Job) -> Mapping[str, object]:
    """Accesses to memory of rank 0 by a rank on its host, and by one elsewhere.

    The window is one that MPI allocates, and one over shared memory, as that of the plan store.

    The owner is inside MPI, asleep, or computes; if the longest access takes about as long as the
    owner is away, the network does not progress without it.
    """
    first = job.on_this_host().comm.bcast(job.rank, root=0)
    hosts = job.all_gather_int(first)
    near = next((rank for rank in range(1, job.size) if hosts[rank] == 0), None)
    far = next((rank for rank in range(1, job.size) if hosts[rank] != 0), None)
    found: dict[str, object] = {}
    for kind, make in (("allocated", _allocated), ("created over shared memory", _created)):
        with make(job) as window:
            for where, origin in (("same host", near), ("other host", far)):
                for owner, away in OWNERS.items() if origin is not None else ():
                    name = f"{kind}, {where}, owner {owner}"
                    found[name] = _measure(job, window, origin or 0, away)
    return found


def _measure(
    job: Job, window: MPI.Win, origin: int, away: Callable[[], None] | None
) -> Mapping[str, Mapping[str, float]]:
    """Median and longest time in us of each access of rank `origin`; known to all ranks."""
    found: dict[str, Mapping[str, float]] = {}
    job.barrier()
    if job.rank == 0 and away is not None:
        away()
    if job.rank == origin:
        time.sleep(0.1)  # the owner has left the barrier
        end_s = time.monotonic() + QUIET_S - 0.2
        found = {name: _time(window, access, end_s) for name, access in ACCESSES.items()}
    _wait_without_haste(job)
    times: Mapping[str, Mapping[str, float]] = job.comm.bcast(found, root=origin)
    return times


def summary(times_us: Sequence[float]) -> Mapping[str, float]:
    """Median and longest of some times."""
    return {
        "median_us": round(statistics.median(times_us), 2),
        "longest_us": round(max(times_us), 2),
    }


def _time(window: MPI.Win, access: Access, end_s: float) -> Mapping[str, float]:
    times_us = list[float]()
    while len(times_us) < N_ACCESSES and (not times_us or time.monotonic() < end_s):
        started_s = time.perf_counter()
        access(window, 0)
        window.Flush(0)
        times_us.append(1e6 * (time.perf_counter() - started_s))
    return summary(times_us)


def atomics(job: Job) -> Mapping[str, object]:
    """All ranks add to one word of rank 0 at once, with info keys and without."""
    found = {}
    for name, hints in (("without info keys", {}), ("with info keys", ATOMIC_HINTS)):
        with _allocated(job, hints) as window:
            found[name] = _add(job, window)
    return found


def _add(job: Job, window: MPI.Win) -> Mapping[str, object]:
    job.barrier()
    started_s = time.perf_counter()
    for _ in range(N_CLAIMS):
        ACCESSES["fetch and add"](window, 0)
        window.Flush(0)
    job.barrier()
    took_s = time.perf_counter() - started_s
    window.Fetch_and_op(_WORD, _FOUND, 0, 16, MPI.NO_OP)
    window.Flush(0)
    job.barrier()
    n_adds = N_CLAIMS * job.size
    return {"per_second": round(n_adds / took_s), "is_exact": int(_FOUND[0]) == n_adds}


@contextmanager
def _allocated(job: Job, hints: Mapping[str, str] | None = None) -> Iterator[MPI.Win]:
    info = MPI.Info.Create(dict(hints or {}))
    with _opened(job, MPI.Win.Allocate(_n_bytes(job), 1, info, job.comm)) as window:
        yield window


@contextmanager
def _created(job: Job) -> Iterator[MPI.Win]:
    shared = MPI.Win.Allocate_shared(_n_bytes(job), 1, comm=job.on_this_host().comm)
    memory = shared.tomemory() if job.is_first else None
    with _opened(job, MPI.Win.Create(memory, 1, comm=job.comm)) as window:
        yield window
    shared.Free()


def _n_bytes(job: Job) -> int:
    return 64 + PLAN_BYTES if job.is_first else 0


@contextmanager
def _opened(job: Job, window: MPI.Win) -> Iterator[MPI.Win]:
    window.Lock_all()
    if job.is_first:
        window.Put(np.zeros(64, np.uint8), 0, 0)
        window.Flush(0)
    job.barrier()
    yield window
    window.Unlock_all()
    window.Free()


def _wait_without_haste(job: Job) -> None:
    """A barrier in which waiting ranks leave cores and network to those that measure."""
    all_are_there = job.comm.Ibarrier()
    while not all_are_there.Test():
        time.sleep(1e-3 if job.rank else 0.0)
