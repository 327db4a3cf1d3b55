"""Does the plan store lose, double or delay plans in a long run, and does its memory grow?

    mpiexec -n 4 python benchmarks/plan_store_soak.py --iterations 1000000 --plan-bytes 100
    tests/mpi/emulated_hosts.sh 2 2 mpiexec python benchmarks/plan_store_soak.py --seconds 300 \
        --plan-bytes 2000000

Every rank takes plans as fast as it can, and puts its share of them in a second thread, as in a
run. Every byte is compared. Plans differ by iteration and rank. With more than one rank per host,
the store holds them in shared memory; add `--hosts 2` to divide the ranks of one host into two.
Memory is the resident set of a rank, in whose growth that of the shared pages counts too; it is
compared between a tenth of the iterations and the last.
"""

import argparse
import json
import resource
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlanStoreTimeoutError

COMM = MPI.COMM_WORLD
RANK, N_RANKS = COMM.Get_rank(), COMM.Get_size()
HEADER = struct.Struct("=qqq")  # iteration, rank, whether it is the last
TIMEOUT_S = 600.0
LOOK_AHEAD = 4
PAGE_BYTES = resource.getpagesize()


def plan_of(iteration: int, rank: int, n_bytes: int, *, is_last: bool) -> bytes:
    filled = bytes([(7 * iteration + rank) % 251]) * (n_bytes - HEADER.size)
    return HEADER.pack(iteration, rank, is_last) + filled


class Planning:
    """The planning thread of a rank."""

    def __init__(self, store: MpiPlanStore, n_bytes: int, end: "End") -> None:
        self._store, self._n_bytes, self._end = store, n_bytes, end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._put_all)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _put_all(self) -> None:
        iteration = 0
        while not self._stopped.is_set():
            if self._store.planner_of(iteration) == RANK:
                is_last = self._end.is_reached(iteration)
                for rank in range(N_RANKS):
                    plan = plan_of(iteration, rank, self._n_bytes, is_last=is_last)
                    self._put(iteration, rank, plan)
            iteration += 1

    def _put(self, iteration: int, rank: int, plan: bytes) -> None:
        while not self._stopped.is_set():
            with suppress(PlanStoreTimeoutError):
                self._store.put(iteration, rank, plan, timeout_s=0.5)
                return


class End:
    """The end of the run, decided by each planner for its iterations."""

    def __init__(self, n_iterations: int | None, seconds: float | None) -> None:
        self._n_iterations, self._start_s, self._seconds = n_iterations, time.monotonic(), seconds

    def is_reached(self, iteration: int) -> bool:
        if self._n_iterations is not None:
            return iteration + 1 >= self._n_iterations
        return time.monotonic() - self._start_s > (self._seconds or 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def takes(store: MpiPlanStore, n_bytes: int) -> Iterator[float]:
    """Takes all plans; yields the time of each take in ms."""
    iteration, is_last = 0, False
    while not is_last:
        started_s = time.perf_counter()
        plan = store.take(iteration, RANK, TIMEOUT_S)
        took_ms = 1e3 * (time.perf_counter() - started_s)
        is_last = bool(HEADER.unpack_from(plan)[2])
        if plan != plan_of(iteration, RANK, n_bytes, is_last=is_last):
            raise SystemExit(f"rank {RANK}: the plan of iteration {iteration} is not its own")
        yield took_ms
        iteration += 1


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    host = RANK * arguments.hosts // N_RANKS
    hosts = {"host": host} if arguments.hosts > 1 else {}
    store = MpiPlanStore(COMM, LOOK_AHEAD, arguments.plan_bytes, **hosts)
    end = End(arguments.iterations, arguments.seconds)
    COMM.Barrier()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    planning = Planning(store, arguments.plan_bytes, end)
    histogram: dict[str, int] = {}
    longest_ms, n_taken, early_bytes = 0.0, 0, 0
    warm = arguments.iterations // 10 if arguments.iterations else None
    for took_ms in takes(store, arguments.plan_bytes):
        n_taken += 1
        longest_ms = max(longest_ms, took_ms)
        power = f"< {10.0 ** np.ceil(np.log10(took_ms + 1e-9)):g} ms"
        histogram[power] = histogram.get(power, 0) + 1
        waited_s = time.perf_counter() - started_s
        if not early_bytes and (n_taken == warm if warm else waited_s > arguments.seconds / 10):
            early_bytes = resident_bytes()
    took_s = time.perf_counter() - started_s
    busy = (time.process_time() - cpu_s) / took_s
    grown = resident_bytes() - early_bytes
    all_have_taken = COMM.Ibarrier()  # until then, planners put what others wait for
    while not all_have_taken.Test():
        time.sleep(1e-3)
    planning.stop()
    progress = str(store.progress)
    store.close()
    results = COMM.gather((longest_ms, n_taken, grown, busy, histogram))
    if results is None:
        return {}
    return {
        "ranks": N_RANKS,
        "plan bytes": arguments.plan_bytes,
        "store": progress,
        "seconds": took_s,
        "iterations": n_taken,
        "the same on all ranks": len({n for _, n, *_ in results}) == 1,
        "longest take, ms": max(longest for longest, *_ in results),
        "grown bytes, by rank": [grown for _, _, grown, *_ in results],
        "cores, by rank": [cores for *_, cores, _ in results],
        "takes, by rank": [counts for *_, counts in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--plan-bytes", type=int, default=2048)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if (arguments.iterations is None) == (arguments.seconds is None):
        parser.error("needs either --iterations or --seconds")
    result = measure(arguments)
    if not result:
        return
    print(json.dumps(result, indent=1))
    if arguments.json:
        machine = machine_facts(n_ranks=N_RANKS)
        machine |= {"mpi": MPI.Get_library_version().split(",")[0]}
        arguments.json.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
