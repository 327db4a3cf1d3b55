"""The watchdog, which ends a job if a rank hangs or dies and reports where every rank was."""

import math
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.watch.position import HEAD_BYTES, Phase, Position, Standing
from dynapipe_hpc.experiment.watch.rank_status import (
    RankStatus,
    suspect_of,
    table_of,
    whereabouts_of,
)
from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import state_of
from dynapipe_hpc.job.world import MPI

_ASK, _TELL = 1, 2
_PAUSE_S = 0.02
# Twice the pause of a watchdog, which answers between two looks.
_PATIENCE_S = 0.5

Tell = Callable[[], list[RankStatus]]


class OtherHosts:
    """Questions and answers between the watchdogs of different hosts.

    They are messages on a separate communicator. No sender waits for its receiver, so stopped or
    dead ranks are only missing from the answer. Every rank answers for all ranks of its host, so
    one question per host is enough, unless the rank that is asked hangs itself.
    """

    def __init__(self, job: Job, here: Sequence[int]) -> None:
        """Connects all ranks of `job` together; `here` are those of this host, ascending."""
        self._comm = job.comm.Dup()
        hosts = defaultdict[int, list[int]](list)
        for rank, first in enumerate(job.all_gather_int(here[0])):
            hosts[first].append(rank)
        del hosts[here[0]]
        self._elsewhere = list(hosts.values())
        self._sent: list[Any] = []

    def close(self) -> None:
        """Frees the communicator; all ranks together."""
        self._comm.Free()

    def answer(self, tell: Tell) -> None:
        """Answers all questions received since the last call."""
        while self._elsewhere and (message := self._comm.improbe(tag=_ASK)):
            asker = message.recv()
            self._sent.append(self._comm.isend(tell(), dest=asker, tag=_TELL))

    def ask(self, tell: Tell, longest_s: float) -> list[RankStatus]:
        """Answers of other hosts that arrive in time; meanwhile answers their questions.

        One rank of every host is asked. Of a host that does not answer, further ranks are asked
        after a while: two, then four, and so on.
        """
        statuses: dict[int, RankStatus] = {}
        end_s = time.monotonic() + longest_s
        next_s, n_asked = 0.0, 0
        while silent := [ranks for ranks in self._elsewhere if ranks[0] not in statuses]:
            now_s = time.monotonic()
            if now_s >= end_s:
                break
            if now_s >= next_s:
                self._ask(rank for ranks in silent for rank in ranks[n_asked : 2 * n_asked + 1])
                next_s, n_asked = now_s + _PATIENCE_S, 2 * n_asked + 1
            time.sleep(_PAUSE_S)
            self.answer(tell)
            while message := self._comm.improbe(tag=_TELL):
                statuses |= {where.rank: where for where in message.recv()}
        return list(statuses.values())

    def _ask(self, ranks: Iterable[int]) -> None:
        own_rank = self._comm.Get_rank()
        self._sent += [self._comm.isend(own_rank, dest=rank, tag=_ASK) for rank in ranks]


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
        """The position of a rank of this host."""
        return self._positions[rank]

    def close(self) -> None:
        """Releases the memory; all ranks together."""
        self._positions.clear()
        self._memory.close()


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
        """Prepares to watch; all ranks together."""
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
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        # Collective: after an error of one rank, others may never reach it.
        if error is None or issubclass(error, SystemExit):
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
