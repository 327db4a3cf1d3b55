"""Ends a job in which a rank hangs or has gone, and says where every rank was."""

import os
import select
import threading
import time
from typing import NoReturn, Self

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.executor.position import Phase, Standing
from dynapipe_hpc.experiment.host_positions import HostPositions, Neighbour
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.other_hosts import OtherHosts
from dynapipe_hpc.experiment.process_state import state_of
from dynapipe_hpc.experiment.whereabouts import (
    Whereabouts,
    suspect_of,
    table_of,
    whereabouts_of,
)
from dynapipe_hpc.plan.cluster import Cluster

_TICK_S = 0.25
_LONGEST_TICK_S = 1.0
_LONGEST_ANSWER_S = 3.0


class Watchdog:
    """A thread beside the execution.

    It looks a few times per second where the ranks of this host are. If this rank has been at one
    place for too long, it asks the other hosts, prints where every rank is, and ends the job. A
    rank of this host whose process ends before its time ends the job at once. Waiting for a plan
    has a limit of its own, the store's.
    """

    def __init__(self, job: Job, cluster: Cluster, timeout_s: float, plan_bytes: int) -> None:
        """Prepares to watch; all ranks together.

        Args:
            job: The ranks.
            cluster: How they are numbered.
            timeout_s: Longest time at one place.
            plan_bytes: Largest plan of one rank.
        """
        self._job, self._cluster, self._timeout_s = job, cluster, timeout_s
        self._positions = HostPositions(job, plan_bytes)
        self.position = self._positions.own
        self._others = OtherHosts(job, [n.rank for n in self._positions.neighbours])
        self._since: dict[int, tuple[Standing, float]] = {}
        self._awake_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Starts watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops watching."""
        self._stopped.set()
        self._thread.join()

    def close(self) -> None:
        """Releases the memory; all ranks together."""
        self._positions.close()
        self._others.close()

    def _watch(self) -> None:
        processes = _open_processes(self._positions.neighbours)
        while not self._stopped.is_set():
            started_s = time.monotonic()
            gone, _, _ = select.select(list(processes), (), (), _TICK_S)
            # Time in which this process was stopped as well says nothing about the others.
            self._awake_s += min(time.monotonic() - started_s, _LONGEST_TICK_S)
            self._look()
            if gone and not self._stopped.is_set():
                self._end_because_of(processes[gone[0]])
            self._others.answer(self._here)
            if self._is_late():
                self._end_because_of_time()
        for process in processes:
            os.close(process)

    def _is_late(self) -> bool:
        standing, since_s = self._since[self._job.rank]
        is_late = self._awake_s - since_s > self._timeout_s
        return is_late and standing.phase is not Phase.WAITS_FOR_PLAN

    def _look(self) -> None:
        for neighbour in self._positions.neighbours:
            standing = self._positions[neighbour.rank].look()
            known = self._since.get(neighbour.rank)
            if known is None or known[0] != standing:
                self._since[neighbour.rank] = (standing, self._awake_s)

    def _here(self) -> list[Whereabouts]:
        """Where the ranks of this host are."""
        return [self._whereabouts(neighbour) for neighbour in self._positions.neighbours]

    def _whereabouts(self, neighbour: Neighbour) -> Whereabouts:
        for_s = self._awake_s - self._since[neighbour.rank][1]
        position, process = self._positions[neighbour.rank], state_of(neighbour.pid)
        host = self._positions.host
        return whereabouts_of(neighbour.rank, host, process, for_s, position, self._cluster)

    def _end_because_of(self, neighbour: Neighbour) -> NoReturn:
        where = self._whereabouts(neighbour)
        error = RunError(
            f"rank {where.rank} on {where.host} was killed, or crashed, at {where.place} (its "
            f"process was {neighbour.pid})"
        )
        self._job.ending.end(error)

    def _end_because_of_time(self) -> NoReturn:
        found = self._here() + self._others.ask(self._here, _LONGEST_ANSWER_S)
        last = suspect_of(found)
        error = RunError(
            f"no instruction has ended here for {self._timeout_s:g} s (executor.timeout_s); rank "
            f"{last.rank} on {last.host} (process {last.process}) has for {last.for_s:.0f} s been "
            f"at {last.place}\n{table_of(found, self._job.size)}"
        )
        self._job.ending.end(error)


def _open_processes(neighbours: list[Neighbour]) -> dict[int, Neighbour]:
    """The other processes of this host by descriptors, which can be read when they have ended.

    Empty where the system has no such descriptors; and of processes in other containers, whose
    numbers mean nothing here.
    """
    (own,) = [n for n in neighbours if n.pid == os.getpid()]
    others = [n for n in neighbours if n.names == own.names and n is not own]
    try:
        return {os.pidfd_open(other.pid): other for other in others}
    except OSError:
        return {}
