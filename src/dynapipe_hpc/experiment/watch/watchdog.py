"""The watchdog, which ends a job if a rank hangs or dies and reports where every rank was."""

import math
import os
import select
import threading
import time
from collections.abc import Mapping
from typing import NoReturn, Self

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.watch.host_positions import HostPositions, Neighbour
from dynapipe_hpc.experiment.watch.other_hosts import OtherHosts
from dynapipe_hpc.experiment.watch.position import Phase, Standing
from dynapipe_hpc.experiment.watch.rank_status import RankStatus, suspect_of, whereabouts_of
from dynapipe_hpc.experiment.watch.table import table_of
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import state_of

_TICK_S = 0.25
_MAX_TICK_S = 1.0
_MAX_ANSWER_S = 3.0


class Watchdog:
    """A thread beside the execution.

    A few times per second it reads the positions of the ranks of this host. If this rank has made
    no progress for too long, and no other rank has said so yet, it asks one rank of every other
    host, prints where all ranks are, and ends the job.
    If the process of a rank of this host ends prematurely, it ends the job at once.
    """

    def __init__(self, job: Job, config: ExperimentConfig) -> None:
        """Prepares to watch; all ranks together.

        Args:
            job: The ranks.
            config: The configuration: numbering of the ranks, and time limits without progress.
        """
        self._job, self._cluster = job, config.cluster
        self._limits = _limits(config)
        plan_bytes = config.store.plan_bytes
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
            self._answer()
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

    def _answer(self) -> None:
        self._others.answer(self._here)

    def _here(self) -> list[RankStatus]:
        """Status of the ranks of this host."""
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
        end_s = time.monotonic() + _MAX_ANSWER_S
        limit_s, key = self._limits[self._since[self._job.rank][0].phase]
        # After a hang, all ranks come here at once: one of them asks, the others answer it.
        self._job.ending.wait_unless_first(meanwhile=self._answer)
        statuses = self._here() + self._others.ask(self._here, end_s - time.monotonic())
        last = suspect_of(statuses)
        error = RunError(
            f"no progress here for {limit_s:g} s ({key}); rank {last.rank} on {last.host} (process "
            f"{last.process}) has for {last.for_s:.0f} s been at {last.place}\n"
            f"{table_of(statuses, self._job.size)}"
        )
        self._job.ending.end_as_first(error)


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
