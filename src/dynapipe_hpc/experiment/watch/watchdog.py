"""The watchdog, which ends a job if a rank hangs or dies and reports where every rank was."""

import math
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.watch.rank_status import (
    Phase,
    Position,
    RankStatus,
    Standing,
    now_of_files,
    read_hangs,
    remove_hang,
    status_of,
    suspects_of,
    table_of,
    write_hang,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import state_of
from dynapipe_hpc.job.world import MPI


class Neighbour(NamedTuple):
    rank: int
    pid: int
    names: str


_TICK_S = 0.25
_MAX_TICK_S = 1.0
_MAX_WRITE_S, _MAX_READ_S = 0.5, 2.5


class Watchdog:
    """Thread that watches the ranks of a host while they execute.

    A few times per second it reads the position of its rank. If the rank makes no progress for half
    of the shortest limit, it writes into the run's folder `hang` the rank's place, its stack, and
    which ranks of its host are stopped. So the first rank past its limit knows where the others
    are: it prints their places and ends the job, as it also does if a rank of its host dies.
    """

    def __init__(self, job: Job, config: ExperimentConfig, run: Path) -> None:
        """Prepares to watch a run in a folder; all ranks together."""
        self._job, self._cluster, self._run = job, config.cluster, run
        # By phase, each with its key; the plan store itself limits the wait for a plan.
        executor = (config.executor.timeout_s, "executor.timeout_s")
        self._limits: dict[Phase, tuple[float, str]] = dict.fromkeys(Phase, executor)
        self._limits[Phase.SAVES] = (config.checkpoint.timeout_s, "checkpoint.timeout_s")
        self._limits[Phase.WAITS_FOR_PLAN] = (math.inf, "")
        self._tells_after_s = min(limit_s for limit_s, _ in self._limits.values()) / 2
        self._told: Standing | None = None
        self.position = Position()
        self._standing, self._since_s = self.position.look(), 0.0
        self._host, local = MPI.Get_processor_name(), job.on_this_host()
        names = str(Path("/proc/self/ns/pid").readlink())
        every = local.comm.allgather(Neighbour(job.rank, os.getpid(), names))
        local.free()
        # Processes in other containers are left out, as their process ids mean nothing here.
        self._neighbours = [n for n in every if n.names == names and n.rank != job.rank]
        self._awake_s = 0.0
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._stop, 1)  # ends a tick at once
        self._thread.join()
        os.close(self._stop)

    def _watch(self) -> None:
        # By pidfd, which becomes readable when the process ends; some systems have none.
        neighbours: dict[int, Neighbour] = {}
        with suppress(OSError):
            neighbours = {os.pidfd_open(each.pid): each for each in self._neighbours}
        processes = select.poll()
        for file in (self._stop, *neighbours):
            processes.register(file, select.POLLIN)
        started_s = time.monotonic()
        while not (gone := dict(processes.poll(1e3 * _TICK_S))).get(self._stop):
            # Time in which this process itself was stopped says nothing about the others.
            self._awake_s += min(time.monotonic() - started_s, _MAX_TICK_S)
            if (standing := self.position.look()) != self._standing:
                self._standing, self._since_s = standing, self._awake_s
            for process in gone:
                rank, pid, _ = neighbours[process]
                was = f"(its process was {pid})"
                error = RunError(f"rank {rank} on {self._host} was killed, or crashed {was}")
                self._job.ending.end(error)
            self._tell_if_stuck()
            limit_s, _ = self._limits[self._standing.phase]
            if self._stuck_s > limit_s:
                self._end_because_of_time()
            started_s = time.monotonic()
        for process in neighbours:
            os.close(process)

    @property
    def _stuck_s(self) -> float:
        return self._awake_s - self._since_s

    def _tell_if_stuck(self) -> None:
        is_stuck = self._stuck_s > self._tells_after_s
        if is_stuck and self._told != self._standing:
            self._told = self._standing
            self._tell()
        elif not is_stuck and self._told:
            self._told = None
            _within(_MAX_WRITE_S, lambda: remove_hang(self._run, self._job.rank))

    def _tell(self) -> list[RankStatus]:
        """Writes where this rank is, and which neighbours are stopped or gone; returns both."""
        rank, for_s = self._job.rank, self._stuck_s
        process = state_of(os.getpid())
        look = partial(status_of, position=self.position, cluster=self._cluster)
        here = [look(rank, self._host, process, for_s=for_s)]
        for each in self._neighbours:
            if (process := state_of(each.pid)) in ("stopped", "gone"):
                place = "a place that only it knows"
                here.append(RankStatus(each.rank, self._host, process, for_s, place, waits=False))
        _within(_MAX_WRITE_S, lambda: write_hang(self._run, here))
        return here

    def _end_because_of_time(self) -> NoReturn:
        limit_s, key = self._limits[self._standing.phase]
        statuses = {status.rank: status for status in self._tell()}
        # After a hang, all ranks come here at once.
        self._job.ending.wait_unless_first()
        others = [rank for rank in range(self._job.size) if rank not in statuses]

        def read() -> None:
            now_s = now_of_files(self._run, self._job.rank)
            for status in read_hangs(self._run, others, now_s):
                statuses.setdefault(status.rank, status)

        _within(_MAX_READ_S, read)
        known = suspects_of(statuses.values())
        last = known[0]
        error = RunError(
            f"no progress here for {limit_s:g} s ({key}); rank {last.rank} on {last.host} (process "
            f"{last.process}) has been at {last.place} for {last.for_s:.0f} s\n"
            f"{table_of(known, self._job.size)}"
        )
        self._job.ending.end_as_first(error)


def _within(limit_s: float, access: Callable[[], None]) -> None:
    """Accesses files in a thread, because a file system that hangs may be why the job hangs."""

    def try_access() -> None:
        with suppress(OSError):
            access()

    thread = threading.Thread(target=try_access, name="hang files", daemon=True)
    thread.start()
    thread.join(limit_s)
