"""The watchdog, which ends a job if a rank hangs or dies and reports where every rank was."""

import math
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.watch.rank_status import (
    HEAD_BYTES,
    Phase,
    Position,
    RankStatus,
    Standing,
    now_of_files,
    read_hangs,
    remove_hang,
    suspect_of,
    table_of,
    whereabouts_of,
    write_hang,
)
from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import state_of
from dynapipe_hpc.job.world import MPI

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rank on this host."""

    rank: int
    pid: int
    names: str


class HostPositions:
    """Positions that every rank of the host can read without the others' help."""

    def __init__(self, job: Job, plan_bytes: int) -> None:
        """Shares positions of plans of at most `plan_bytes`; all ranks of `job` together."""
        self.host = MPI.Get_processor_name()
        local = job.on_this_host()
        n_bytes = HEAD_BYTES + -(-plan_bytes // _WORD_BYTES) * _WORD_BYTES
        self._memory = HostMemory(local.comm, n_bytes)
        self._memory.write(local.rank, 0, bytes(HEAD_BYTES))
        names = str(Path("/proc/self/ns/pid").readlink())
        self.neighbours = local.comm.allgather(Neighbour(job.rank, os.getpid(), names))
        ranks = [neighbour.rank for neighbour in self.neighbours]
        positions = (Position(self._memory.part(place)) for place in range(local.size))
        self._positions: dict[int, Position] = dict(zip(ranks, positions, strict=True))
        self.own = self._positions[job.rank]

    def __getitem__(self, rank: int) -> Position:
        return self._positions[rank]

    def close(self) -> None:
        """Releases the memory; all ranks together."""
        self._positions.clear()
        self._memory.close()


_TICK_S = 0.25
_MAX_TICK_S = 1.0
_MAX_WRITE_S, _MAX_READ_S = 0.5, 2.5


class Watchdog:
    """A thread beside the execution.

    A few times per second it reads the positions of the ranks of this host. A rank without progress
    for half of its limit says where it is in the folder hang of the run, with its stack. So the
    first rank that is late knows where the others are: it prints that, and ends the job. If the
    process of a rank of this host ends prematurely, it ends the job at once.
    """

    def __init__(self, job: Job, config: ExperimentConfig, run: Path) -> None:
        """Prepares to watch a run in a folder; all ranks together."""
        self._job, self._cluster, self._run = job, config.cluster, run
        self._limits = _limits(config)
        self._tells_after_s = config.executor.timeout_s / 2
        self._told: Standing | None = None
        plan_bytes = config.store.plan_bytes
        self._positions = HostPositions(job, plan_bytes)
        self.position = self._positions.own
        self._since: dict[int, tuple[Standing, float]] = {}
        self._awake_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        # Collective: after an error of one rank, others may never reach it.
        if error is None or issubclass(error, SystemExit):
            self._positions.close()

    def _watch(self) -> None:
        neighbours = _open_processes(self._positions.neighbours)
        processes = select.poll()
        for process in neighbours:
            processes.register(process, select.POLLIN)
        while not self._stopped.is_set():
            started_s = time.monotonic()
            gone = processes.poll(1e3 * _TICK_S)
            # Time in which this process itself was stopped says nothing about the others.
            self._awake_s += min(time.monotonic() - started_s, _MAX_TICK_S)
            self._look()
            if gone and not self._stopped.is_set():
                self._end_because_of(neighbours[gone[0][0]])
            self._tell_if_stuck()
            if self._is_late():
                self._end_because_of_time()
        for process in neighbours:
            os.close(process)

    def _is_late(self) -> bool:
        standing, since_s = self._since[self._job.rank]
        limit_s, _ = self._limits[standing.phase]
        return self._awake_s - since_s > limit_s

    def _look(self) -> None:
        for neighbour in self._positions.neighbours:
            standing = self._positions[neighbour.rank].look()
            known = self._since.get(neighbour.rank)
            if known is None or known[0] != standing:
                self._since[neighbour.rank] = (standing, self._awake_s)

    def _tell_if_stuck(self) -> None:
        standing, since_s = self._since[self._job.rank]
        is_stuck = self._awake_s - since_s > self._tells_after_s
        if is_stuck and self._told != standing:
            self._told = standing
            self._tell()
        elif not is_stuck and self._told:
            self._told = None
            _within(_MAX_WRITE_S, lambda: remove_hang(self._run, self._job.rank))

    def _tell(self) -> None:
        here = self._here()
        own_status = [status for status in here if status.rank == self._job.rank]
        silent = [status for status in here if status.process in ("stopped", "gone")]
        _within(_MAX_WRITE_S, lambda: write_hang(self._run, [*own_status, *silent]))

    def _here(self) -> list[RankStatus]:
        return [self._whereabouts(neighbour) for neighbour in self._positions.neighbours]

    def _whereabouts(self, neighbour: Neighbour) -> RankStatus:
        for_s = self._awake_s - self._since[neighbour.rank][1]
        position, process = self._positions[neighbour.rank], state_of(neighbour.pid)
        host = self._positions.host
        return whereabouts_of(
            neighbour.rank, host, process, for_s=for_s, position=position, cluster=self._cluster
        )

    def _end_because_of(self, neighbour: Neighbour) -> NoReturn:
        where = self._whereabouts(neighbour)
        error = RunError(
            f"rank {where.rank} on {where.host} was killed, or crashed, at {where.place} (its "
            f"process was {neighbour.pid})"
        )
        self._job.ending.end(error)

    def _end_because_of_time(self) -> NoReturn:
        limit_s, key = self._limits[self._since[self._job.rank][0].phase]
        self._tell()
        # After a hang, all ranks come here at once.
        self._job.ending.wait_unless_first()
        statuses = {status.rank: status for status in self._here()}
        elsewhere = [rank for rank in range(self._job.size) if rank not in statuses]

        def read() -> None:
            now_s = now_of_files(self._run, self._job.rank)
            for status in read_hangs(self._run, elsewhere, now_s):
                statuses.setdefault(status.rank, status)

        _within(_MAX_READ_S, read)
        known = list(statuses.values())
        last = suspect_of(known)
        error = RunError(
            f"no progress here for {limit_s:g} s ({key}); rank {last.rank} on {last.host} (process "
            f"{last.process}) has for {last.for_s:.0f} s been at {last.place}\n"
            f"{table_of(known, self._job.size)}"
        )
        self._job.ending.end_as_first(error)


def _within(limit_s: float, access: Callable[[], None]) -> None:
    """Accesses files in a thread, as a file system that hangs may be why the job does."""

    def try_access() -> None:
        with suppress(OSError):
            access()

    thread = threading.Thread(target=try_access, name="hang files", daemon=True)
    thread.start()
    thread.join(limit_s)


def _limits(config: ExperimentConfig) -> Mapping[Phase, tuple[float, str]]:
    """Time limit of each phase and its key; the plan store limits waiting for a plan itself."""
    executor = (config.executor.timeout_s, "executor.timeout_s")
    limits: dict[Phase, tuple[float, str]] = dict.fromkeys(Phase, executor)
    limits[Phase.SAVES] = (config.checkpoint.timeout_s, "checkpoint.timeout_s")
    limits[Phase.WAITS_FOR_PLAN] = (math.inf, "")
    return limits


def _open_processes(neighbours: list[Neighbour]) -> dict[int, Neighbour]:
    """Other processes of this host by pidfd, which becomes readable when the process ends.

    Empty if the system has no pidfds. Processes in other containers are left out, as their process
    ids mean nothing here.
    """
    (own_process,) = [n for n in neighbours if n.pid == os.getpid()]
    others = [n for n in neighbours if n.names == own_process.names and n is not own_process]
    try:
        return {os.pidfd_open(other.pid): other for other in others}
    except OSError:
        return {}
