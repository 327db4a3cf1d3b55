"""The steps of a job that ranks take together, without torch: how many calls, how much time?

    mpiexec -n N python -m growth.steps_of_a_rank RANKS_PER_HOST OUT.json

Ranks count as being on different hosts by their numbers. Every iteration of some is planned by one
rank, which puts the plans of all; then all ranks take theirs, compare its hash, and combine their
numbers, as in a run. Rank 0 writes what it cost.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dynapipe_hpc.experiment.run.iteration import IterationResult, all_reduce_fields
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI
from dynapipe_hpc.store.mpi import MpiPlanStore
from growth.count_calls import KINDS, Calls, counted_calls

PLAN_BYTES = 50_000
LOOK_AHEAD = 4
N_ITERATIONS = 24
TIMEOUT_S = 120.0
WORLD = MPI.COMM_WORLD

Step = Mapping[str, float]
Parts = list[tuple[Counter[str], float]]


def measure(ranks_per_host: int = 0, n_iterations: int = N_ITERATIONS) -> Mapping[str, Step]:
    """Most calls of any rank, and median times, by step; all ranks together.

    Args:
        ranks_per_host: Number of ranks that count as being on one host; 0 for hosts as they are.
        n_iterations: Number of iterations.
    """
    with counted_calls() as calls:
        job = Job(MPI.COMM_WORLD)
        found = iterate(calls, job, ranks_per_host, n_iterations)
    return {step: of_all(WORLD, parts) for step, parts in found.items()}


def iterate(
    calls: Calls, job: Job, ranks_per_host: int, n_iterations: int = N_ITERATIONS
) -> dict[str, Parts]:
    """Calls and ms of this rank: for a plan store, and per iteration planned or executed."""
    found: dict[str, Parts] = {"open the store": [], "plan": [], "take": [], "agree": []}
    plan = bytes(PLAN_BYTES)
    with calls.during() as opening:
        host = host_of(job, ranks_per_host)
        store = MpiPlanStore(job.comm, LOOK_AHEAD, PLAN_BYTES, host=host)
    found["open the store"].append((opening, 0.0))
    for iteration in range(n_iterations):
        if store.planner_of(iteration) == job.rank:
            found["plan"].append(timed(calls, partial(put, job, store, iteration, plan)))
        job.barrier()  # plans are there when they are due, as they should be
        found["take"].append(timed(calls, partial(take, job, store, iteration)))
        found["agree"].append(timed(calls, partial(agree, job, iteration)))
    store.close()
    return found


def host_of(job: Job, ranks_per_host: int) -> int:
    """Number of the host of this rank: the first rank on it, if hosts are as they are."""
    if ranks_per_host:
        return job.rank // ranks_per_host
    first: int = job.on_this_host().comm.bcast(job.rank, root=0)
    return first


def put(job: Job, store: MpiPlanStore, iteration: int, plan: bytes) -> None:
    """Stores the plans of an iteration, as a planner does."""
    for rank in range(job.size):
        store.put(iteration, rank, plan, TIMEOUT_S)


def take(job: Job, store: MpiPlanStore, iteration: int) -> None:
    """Takes a plan, as a rank does before it executes it."""
    store.take(iteration, job.rank, TIMEOUT_S)
    store.plans_ahead(job.rank)


def agree(job: Job, iteration: int) -> None:
    """Compares plans and combines numbers of all ranks."""
    check_same_plans(job, iteration, 2**63)
    result = IterationResult(
        iteration=iteration,
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=1.0,
        n_samples=1,
        real_tokens=1,
        n_microbatches=1,
        padded_tokens=1,
        predicted_ms=1.0,
        predicted_peak_bytes=1,
        measured_peak_bytes=1,
        waited_ms=1.0,
        plans_ahead=1,
        passes_ms=1.0,
        last_pass_ms=1.0,
    )
    all_reduce_fields(result, job)


def timed(calls: Calls, step: Callable[[], None]) -> tuple[Counter[str], float]:
    """Calls and ms of a step."""
    started_s = time.perf_counter()
    with calls.during() as counts:
        step()
    return counts, 1e3 * (time.perf_counter() - started_s)


def of_all(comm: MPI.Intracomm, parts: Parts) -> Step:
    """The most calls that any rank made in a step, the bytes of all, and the median time."""
    mine = Counter[str]()
    for counts, _ in parts:
        mine |= counts
    most = {kind: comm.allreduce(mine[kind], MPI.MAX) for kind in KINDS}
    total = {"window_bytes": comm.allreduce(mine["window_bytes"], MPI.SUM)}
    times_ms = comm.allreduce([ms for _, ms in parts])
    return {**most, **total, "median_ms": statistics.median(times_ms)}


def main() -> None:
    found = measure(ranks_per_host=int(sys.argv[1]))
    if WORLD.Get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
