"""How long does a plan take from its planner to its executor?

    mpiexec -n 2 python benchmarks/plan_store.py [--json OUT.json]
    tests/mpi/emulated_hosts.sh 2 1 mpiexec python benchmarks/plan_store.py [--json OUT.json]

Rank 0 plans for rank 1: on the same node, or over TCP between what MPI takes for two. "put to
take" runs from the call of put to the return of take, by a clock that both processes share, where
take has waited already for the time named. "take" alone is the usual case: the plan was there.
"take beside" is the same while the planner computes for 0.3 s without calling MPI, with and without
a progress thread.
"""

import argparse
import json
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.store.config import ProgressChoice
from dynapipe_hpc.store.mpi import MpiPlanStore

PLAN_BYTES = 50_000
N_PLANS = 1000
WAITS_MS = (0.5, 5.0, 50.0)
TIMEOUT_S = 30.0
COMPUTE_MS = 300.0
N_COMPUTED = 15
CHOICES: tuple[ProgressChoice, ...] = ("rma", "thread")
MATRIX = np.ones((300, 300))
SENT_S = struct.Struct("=d")
PADDING = bytes(PLAN_BYTES - SENT_S.size)
COMM = MPI.COMM_WORLD


def put_to_take_ms(store: MpiPlanStore, iteration: int, wait_ms: float) -> float:
    """The time on rank 1 if rank 0 puts the plan `wait_ms` after rank 1 began to wait for it."""
    COMM.Barrier()
    if COMM.Get_rank() == 0:
        compute(wait_ms)
        store.put(iteration, 1, SENT_S.pack(time.perf_counter()) + PADDING, TIMEOUT_S)
        return 0.0
    plan = store.take(iteration, 1, TIMEOUT_S)
    (sent_s,) = SENT_S.unpack_from(plan)
    return 1e3 * (time.perf_counter() - float(sent_s))


def compute(duration_ms: float) -> None:
    """Keeps the planner's core busy, as planning does; a core that slept is slow at first."""
    end_s = time.perf_counter() + 1e-3 * duration_ms
    while time.perf_counter() < end_s:
        pass


def take_ms(store: MpiPlanStore, iteration: int) -> float:
    """The time on rank 1 if the plan is there."""
    if COMM.Get_rank() == 0:
        store.put(iteration, 1, SENT_S.pack(0.0) + PADDING, TIMEOUT_S)
    COMM.Barrier()
    started_s = time.perf_counter()
    if COMM.Get_rank() == 1:
        store.take(iteration, 1, TIMEOUT_S)
    return 1e3 * (time.perf_counter() - started_s)


def multiply(duration_ms: float) -> None:
    """Computes without the interpreter."""
    end_s = time.perf_counter() + 1e-3 * duration_ms
    while time.perf_counter() < end_s:
        MATRIX @ MATRIX


def take_beside_ms(store: MpiPlanStore, iteration: int, work: Callable[[float], None]) -> float:
    """The time on rank 1 if the plan is there and rank 0 computes."""
    if COMM.Get_rank() == 0:
        store.put(iteration, 1, SENT_S.pack(0.0) + PADDING, TIMEOUT_S)
    COMM.Barrier()
    if COMM.Get_rank() == 0:
        work(COMPUTE_MS)
        return 0.0
    time.sleep(0.05)  # rank 0 has left the barrier
    started_s = time.perf_counter()
    store.take(iteration, 1, TIMEOUT_S)
    return 1e3 * (time.perf_counter() - started_s)


def percentiles(
    time_ms: Callable[[MpiPlanStore, int], float], n_plans: int, progress: ProgressChoice = "auto"
) -> dict[str, float]:
    store = MpiPlanStore(COMM, capacity=1, plan_bytes=PLAN_BYTES, progress=progress)
    times_ms = [time_ms(store, iteration) for iteration in range(n_plans)]
    store.close()
    p10, p50, p90 = COMM.bcast(np.percentile(times_ms, [10, 50, 90]).tolist(), root=1)
    return {"p10": p10, "median": p50, "p90": p90}


def measure() -> dict[str, dict[str, float]]:
    results = {"take": percentiles(take_ms, N_PLANS)}
    for wait_ms in WAITS_MS:
        time_ms = partial(put_to_take_ms, wait_ms=wait_ms)
        n_plans = min(N_PLANS, int(5000 / wait_ms))
        results[f"put to take, waited {wait_ms:g} ms"] = percentiles(time_ms, n_plans)
    for name, work in (("matrix products", multiply), ("Python", compute)):
        for progress in CHOICES:
            time_ms = partial(take_beside_ms, work=work)
            results[f"take beside {name}, {progress}"] = percentiles(time_ms, N_COMPUTED, progress)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if COMM.Get_size() != 2:
        parser.error(f"needs 2 ranks, has {COMM.Get_size()}")
    results = measure()
    if COMM.Get_rank() == 1:
        return
    print(f"{f'[ms], {PLAN_BYTES} bytes':36}", "p10     median  p90")
    for name, row in results.items():
        print(f"{name:36}", *(f"{value:<7.3f}" for value in row.values()))
    if arguments.json:
        machine = machine_facts(n_ranks=2) | {"mpi": MPI.Get_library_version().split(",")[0]}
        arguments.json.write_text(json.dumps({"machine": machine, "ms": results}, indent=1))


if __name__ == "__main__":
    main()
