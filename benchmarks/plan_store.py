"""Time that a plan takes from its planner to its executor.

    mpiexec -n 2 python benchmarks/plan_store.py [--json OUT.json]
    tests/mpi/emulated_hosts.sh 2 1 mpiexec python benchmarks/plan_store.py [--json OUT.json]

Rank 0 plans for both: on the same node, or over TCP between what MPI takes for two. "put to
take" runs from the call of put to the return of take, by a clock that both processes share, where
take has waited already for the time named. "take" alone is the usual case: the plan was there.
"put beside" is the time of the put while rank 1 computes for 0.3 s without calling MPI, with and
without a progress thread.
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
        put(store, iteration, time.perf_counter())
        return 0.0
    plan = store.take(iteration, 1, TIMEOUT_S)
    (sent_s,) = SENT_S.unpack_from(plan)
    return 1e3 * (time.perf_counter() - float(sent_s))


def put(store: MpiPlanStore, iteration: int, sent_s: float = 0.0) -> None:
    """Puts the plans of both ranks, and takes that of rank 0, which does not need it."""
    store.put(iteration, 0, b"", TIMEOUT_S)
    store.put(iteration, 1, SENT_S.pack(sent_s) + PADDING, TIMEOUT_S)
    store.take(iteration, 0, TIMEOUT_S)


def compute(duration_ms: float) -> None:
    """Keeps the planner's core busy, as planning does; a core that slept is slow at first."""
    end_s = time.perf_counter() + 1e-3 * duration_ms
    while time.perf_counter() < end_s:
        pass


def take_ms(store: MpiPlanStore, iteration: int) -> float:
    """The time on rank 1 if the plan is there."""
    if COMM.Get_rank() == 0:
        put(store, iteration)
    COMM.Barrier()
    if COMM.Get_rank() == 0:
        return 0.0
    started_s = time.perf_counter()
    store.take(iteration, 1, TIMEOUT_S)
    return 1e3 * (time.perf_counter() - started_s)


def multiply(duration_ms: float) -> None:
    """Computes without the interpreter."""
    end_s = time.perf_counter() + 1e-3 * duration_ms
    while time.perf_counter() < end_s:
        MATRIX @ MATRIX


def put_beside_ms(store: MpiPlanStore, iteration: int, work: Callable[[float], None]) -> float:
    """The time on rank 0 if rank 1, for which it plans, computes."""
    COMM.Barrier()
    if COMM.Get_rank() == 1:
        work(COMPUTE_MS)
        store.take(iteration, 1, TIMEOUT_S)
        return 0.0
    time.sleep(0.05)  # rank 1 has left the barrier
    started_s = time.perf_counter()
    put(store, iteration)
    return 1e3 * (time.perf_counter() - started_s)


def percentiles(
    time_ms: Callable[[MpiPlanStore, int], float], n_plans: int, progress: ProgressChoice = "auto"
) -> dict[str, float]:
    store = MpiPlanStore(COMM, capacity=1, plan_bytes=PLAN_BYTES, progress=progress)
    times_ms = np.array([time_ms(store, iteration) for iteration in range(n_plans)])
    store.close()
    COMM.Allreduce(MPI.IN_PLACE, times_ms, MPI.MAX)  # 0 on the rank that does not measure
    p10, p50, p90 = np.percentile(times_ms, [10, 50, 90]).tolist()
    return {"p10": p10, "median": p50, "p90": p90}


def measure() -> dict[str, dict[str, float]]:
    results = {"take": percentiles(take_ms, N_PLANS)}
    for wait_ms in WAITS_MS:
        time_ms = partial(put_to_take_ms, wait_ms=wait_ms)
        n_plans = min(N_PLANS, int(5000 / wait_ms))
        results[f"put to take, waited {wait_ms:g} ms"] = percentiles(time_ms, n_plans)
    for name, work in (("matrix products", multiply), ("Python", compute)):
        for progress in CHOICES:
            time_ms = partial(put_beside_ms, work=work)
            results[f"put beside {name}, {progress}"] = percentiles(time_ms, N_COMPUTED, progress)
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
