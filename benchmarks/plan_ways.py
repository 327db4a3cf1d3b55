"""Which way do plans reach the ranks of other hosts soonest?

    tests/mpi/emulated_hosts.sh 2 2 mpiexec python benchmarks/plan_ways.py [--json OUT.json]
    mpiexec -n 4 python benchmarks/plan_ways.py --hosts 2

`one-sided` is the plan store: the planner writes the plans of each host into that host's memory.
`broadcast` is the simplest other way: a thread of every host's first rank, the leader, joins a
nonblocking broadcast (MPI_Ibcast) of all plans of every iteration, in turn, and copies those of its
host into the same kind of shared ring. Both hold the contract of a plan store; broadcasts are in
order, and wait until every host has room. Planners are the leaders.

"alone" is the time from the first put of an iteration until the last rank has its plan, which all
ranks have been waiting for. "stream" is the time per iteration if ranks take plans as fast as they
can, with four iterations of look-ahead.
"""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.mpi_memory import poll
from dynapipe_hpc.store.ring_layout import HEADER, WORD, MessageKind, Outbox, RingLayout

COMM = MPI.COMM_WORLD
RANK, N_RANKS = COMM.Get_rank(), COMM.Get_size()
LOOK_AHEAD = 4
TIMEOUT_S = 120.0
SIZES = {50_000: 200, 2_000_000: 60}


class Way(Protocol):
    def put(self, iteration: int, plans: Sequence[bytes]) -> None: ...
    def take(self, iteration: int) -> bytes: ...
    def planner_of(self, iteration: int) -> int: ...
    def close(self) -> None: ...


class OneSided:
    def __init__(self, host: int, n_bytes: int) -> None:
        self._store = MpiPlanStore(COMM, LOOK_AHEAD, n_bytes, host=host)
        self.planner_of = self._store.planner_of
        self.close = self._store.close

    def put(self, iteration: int, plans: Sequence[bytes]) -> None:
        for rank, plan in enumerate(plans):
            self._store.put(iteration, rank, plan, TIMEOUT_S)

    def take(self, iteration: int) -> bytes:
        return self._store.take(iteration, RANK, TIMEOUT_S)


class Broadcast:
    def __init__(self, host: int, n_bytes: int) -> None:
        sharing = COMM.Split_type(MPI.COMM_TYPE_SHARED, RANK)
        near = MPI.Intracomm(sharing.Split(host, RANK))
        self._place, self._ranks = near.Get_rank(), near.allgather(RANK)
        self._layout = RingLayout(len(self._ranks), LOOK_AHEAD, n_bytes)
        is_leader = self._place == 0
        self._ring = HostMemory(near, self._layout.ring_bytes if is_leader else 0)
        for offset in self._layout.counts if is_leader else ():
            self._ring.write(0, offset, WORD.pack(0))
        self._leaders = sorted(set(COMM.allgather(self._ranks[0])))
        self._n_bytes = n_bytes
        self._queue: SimpleQueue[Sequence[bytes]] = SimpleQueue()
        self._stopped = threading.Event()
        among = COMM.Split(0 if is_leader else MPI.UNDEFINED, RANK)
        self._thread = threading.Thread(target=self._serve, args=(among,)) if is_leader else None
        if self._thread:
            self._thread.start()

    def planner_of(self, iteration: int) -> int:
        return int(self._leaders[iteration % len(self._leaders)])

    def put(self, iteration: int, plans: Sequence[bytes]) -> None:
        del iteration
        self._queue.put(plans)

    def take(self, iteration: int) -> bytes:
        ring, layout = self._ring, self._layout
        expected, at = WORD.pack(iteration + 1), layout.n_put(iteration)
        poll(lambda: ring.read(0, at, WORD.size) == expected, 0.5e-3)
        header = ring.read(0, layout.header(iteration, self._place), HEADER.size)
        found = layout.find(iteration, header)
        plan = ring.read(0, *found[1:]) if found else b""
        ring.write(0, layout.n_taken(self._place), expected)
        return plan

    def close(self) -> None:
        self._stopped.set()
        if self._thread:
            self._thread.join()
        COMM.Barrier()
        self._ring.close()

    def _serve(self, among: MPI.Intracomm) -> None:
        """Broadcasts the plans of all iterations; an empty message ends it."""
        outbox = Outbox(self._ring, 0, self._layout)
        iteration = 0
        while True:
            root = iteration % among.Get_size()
            plans = self._next() if among.Get_rank() == root else ()
            sizes = np.zeros(N_RANKS, np.int64)
            sizes[: len(plans)] = [len(plan) for plan in plans]
            poll(among.Ibcast(sizes, root).Test, 1e-2)
            if not sizes.any():
                return
            data = np.empty(int(sizes.sum()), np.uint8)
            if plans:
                data[:] = np.frombuffer(b"".join(plans), np.uint8)
            poll(among.Ibcast(data, root).Test, 1e-2)
            starts = np.concatenate([[0], np.cumsum(sizes)])
            for place, rank in enumerate(self._ranks):
                poll(partial(outbox.has_room, place, iteration), 0.1)
                plan = data[starts[rank] : starts[rank + 1]].tobytes()
                outbox.add(place, iteration, (MessageKind.PLAN, plan))
            iteration += 1

    def _next(self) -> Sequence[bytes]:
        while self._queue.empty():
            if self._stopped.wait(1e-4):
                return ()
        return self._queue.get()


def check(is_own: bool) -> None:
    if not is_own:
        raise SystemExit(f"rank {RANK}: not its plan")


def all_wait() -> None:
    """A barrier in which nobody occupies a core."""
    poll(COMM.Ibarrier().Test, 1e-2)


def alone_ms(way: Way, n_bytes: int, n: int) -> list[float]:
    times_ms = []
    plans = [bytes([rank]) * n_bytes for rank in range(N_RANKS)]
    for iteration in range(n):
        all_wait()
        started_s = np.array([time.perf_counter()])
        if way.planner_of(iteration) == RANK:
            way.put(iteration, plans)
        check(way.take(iteration) == plans[RANK])
        ended_s = np.array([time.perf_counter()])
        poll(COMM.Iallreduce(MPI.IN_PLACE, ended_s, MPI.MAX).Test, 1e-2)
        poll(COMM.Ibcast(started_s, way.planner_of(iteration)).Test, 1e-2)
        times_ms.append(1e3 * float(ended_s[0] - started_s[0]))
    return times_ms


def stream_ms(way: Way, n_bytes: int, n: int) -> float:
    plans = [bytes([rank]) * n_bytes for rank in range(N_RANKS)]

    def put_all() -> None:
        for iteration in range(n):
            if way.planner_of(iteration) == RANK:
                way.put(iteration, plans)

    all_wait()
    started_s = time.perf_counter()
    planning = threading.Thread(target=put_all)
    planning.start()
    for iteration in range(n):
        check(way.take(iteration) == plans[RANK])
    all_wait()
    planning.join()
    return 1e3 * (time.perf_counter() - started_s) / n


def measure(host: int) -> dict[str, dict[str, float]]:
    results = {}
    for n_bytes, n in SIZES.items():
        for name, make in (("one-sided", OneSided), ("broadcast", Broadcast)):
            way: Way = make(host, n_bytes)
            p10, p50, p90 = np.percentile(alone_ms(way, n_bytes, n), [10, 50, 90])
            way.close()
            way = make(host, n_bytes)
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            each_ms = stream_ms(way, n_bytes, n)
            cores = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
            way.close()
            results[f"{name}, {n_bytes:,} bytes"] = {
                "alone p10": p10,
                "alone median": p50,
                "alone p90": p90,
                "stream": each_ms,
                "cores in all": COMM.allreduce(cores),
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", type=int, default=1)
    arguments = parser.parse_args()
    results = measure(RANK * arguments.hosts // N_RANKS)
    if RANK:
        return
    for name, row in results.items():
        print(f"{name:28}", *(f"{key} {value:.2f} " for key, value in row.items()))
    if arguments.json:
        machine = machine_facts(n_ranks=N_RANKS)
        machine |= {"mpi": MPI.Get_library_version().split(",")[0]}
        arguments.json.write_text(json.dumps({"machine": machine, "ms": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
