"""The steps of a job that ranks take together, without torch: how many calls, how much time?

    mpiexec -n N python -m cluster.steps_of_a_rank RANKS_PER_HOST OUT.json

Ranks count as being on different hosts by their numbers. Every iteration of some is planned by one
rank, which puts the plans of all; then all ranks take theirs, compare its hash, and combine their
numbers, as in a run. Rank 0 writes what it cost.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

from dynapipe_hpc.experiment.run.iteration import IterationResult, all_reduce_fields
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI
from dynapipe_hpc.store.mpi import MpiPlanStore

PLAN_BYTES = 50_000
LOOK_AHEAD = 4
N_ITERATIONS = 24
TIMEOUT_S = 120.0
KINDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("send", "isend", "Send", "Isend", "ssend", "issend"),
    "collectives": (
        *("Barrier", "barrier", "Ibarrier", "Bcast", "bcast", "Ibcast", "gather", "Gather"),
        *("allgather", "Allgather", "Iallgather", "Allreduce", "allreduce", "Iallreduce"),
        *("alltoall", "Alltoall", "scatter", "Scatter", "reduce", "Reduce"),
    ),
    "one_sided": (
        *("Put", "Get", "Rput", "Rget", "Accumulate", "Raccumulate", "Get_accumulate"),
        *("Rget_accumulate", "Fetch_and_op", "Compare_and_swap"),
    ),
    "flushes": ("Flush", "Flush_local", "Flush_all", "Flush_local_all"),
}
"""Methods of communicators and windows by kind. A message counts where it is sent."""

Calls = Counter[str]
"""Calls of a rank by kind, and bytes of its windows."""
Step = Mapping[str, float]
Parts = list[tuple[Calls, float]]


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Counts calls to windows that are made inside the block, and to `MPI.COMM_WORLD`.

    Calls to communicators that are derived from it count, too, and those of all threads.
    """
    calls = Calls()
    plain = {name: getattr(MPI, name) for name in ("Win", "Intracomm", "COMM_WORLD")}
    for base in (MPI.Win, MPI.Intracomm):
        methods = {
            name: _counting(calls, getattr(base, name), kind)
            for kind, names in KINDS.items()
            for name in names
            if hasattr(base, name)
        }
        if base is plain["Win"]:
            methods |= {name: _sizing(calls, name) for name in ("Allocate", "Allocate_shared")}
        setattr(MPI, base.__name__, type(f"Counted{base.__name__}", (base,), methods))
    setattr(MPI, "COMM_WORLD", MPI.Intracomm(MPI.COMM_WORLD))  # noqa: B010, typed as a constant
    try:
        yield calls
    finally:
        for name, value in plain.items():
            setattr(MPI, name, value)


def _counting(calls: Calls, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls[kind] += 1
        return method(*arguments, **named)

    return call


def _sizing(calls: Calls, name: str) -> Any:
    method = getattr(MPI.Win, name).__func__

    def allocate(cls: type, n_bytes: int, *arguments: Any, **named: Any) -> Any:
        calls["window_bytes"] += n_bytes
        return method(cls, n_bytes, *arguments, **named)

    return classmethod(allocate)


def measure(ranks_per_host: int = 0) -> Mapping[str, Step]:
    """Most calls of any rank, and median times, by step; all ranks together.

    As many ranks as `ranks_per_host` count as being on one host; 0 for hosts as they are.
    """
    with counted_calls() as calls:
        found = iterate(calls, Job(MPI.COMM_WORLD), ranks_per_host)
    return {step: of_all(MPI.COMM_WORLD, parts) for step, parts in found.items()}


def iterate(
    calls: Calls, job: Job, ranks_per_host: int, n_iterations: int = N_ITERATIONS
) -> dict[str, Parts]:
    """Calls and ms of this rank: for a plan store, and per iteration planned or executed."""
    found: dict[str, Parts] = {"open the store": [], "plan": [], "take": [], "agree": []}

    def counted(step: str, work: Callable[[], object]) -> None:
        before, started_s = calls.copy(), time.perf_counter()
        work()
        found[step].append((calls - before, 1e3 * (time.perf_counter() - started_s)))

    before = calls.copy()
    store = MpiPlanStore(job.comm, LOOK_AHEAD, PLAN_BYTES, host=host_of(job, ranks_per_host))
    found["open the store"].append((calls - before, 0.0))
    for iteration in range(n_iterations):
        if store.planner_of(iteration) == job.rank:
            counted("plan", partial(put, job, store, iteration))
        job.barrier()  # plans are there when they are due, as they should be
        counted("take", partial(take, job, store, iteration))
        counted("agree", partial(agree, job, iteration))
    store.close()
    return found


def host_of(job: Job, ranks_per_host: int) -> int:
    """Number of the host of this rank: the first rank on it, if hosts are as they are."""
    if ranks_per_host:
        return job.rank // ranks_per_host
    first: int = job.on_this_host().comm.bcast(job.rank, root=0)
    return first


def put(job: Job, store: MpiPlanStore, iteration: int) -> None:
    """Stores the plans of an iteration, as a planner does."""
    plan = bytes(PLAN_BYTES)
    for rank in range(job.size):
        store.put(iteration, rank, plan, TIMEOUT_S)


def take(job: Job, store: MpiPlanStore, iteration: int) -> None:
    """Takes a plan, as a rank does before it executes it."""
    store.take(iteration, job.rank, TIMEOUT_S)
    store.plans_ahead(job.rank)


def agree(job: Job, iteration: int) -> None:
    """Compares plans and combines numbers of all ranks."""
    check_same_plans(job, iteration, 2**63)
    needed = [field.name for field in fields(IterationResult) if field.default is MISSING]
    numbers: dict[str, Any] = dict.fromkeys(needed, 1)
    all_reduce_fields(IterationResult(**numbers), job)


def of_all(comm: MPI.Intracomm, parts: Parts) -> Step:
    """The most calls that any rank made in a step, the bytes of all, and the median time."""
    mine = Calls()
    for counts, _ in parts:
        mine |= counts
    most = {kind: comm.allreduce(mine[kind], MPI.MAX) for kind in KINDS}
    total = {"window_bytes": comm.allreduce(mine["window_bytes"], MPI.SUM)}
    times_ms = comm.allreduce([ms for _, ms in parts])
    return {**most, **total, "median_ms": statistics.median(times_ms)}


def main() -> None:
    found = measure(ranks_per_host=int(sys.argv[1]))
    if MPI.COMM_WORLD.Get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
