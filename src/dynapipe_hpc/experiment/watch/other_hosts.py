"""Queries to ranks on other hosts, answered even while their main threads are busy or hang."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from dynapipe_hpc.experiment.watch.whereabouts import Whereabouts
from dynapipe_hpc.job.job import Job

_ASK, _TELL = 1, 2
_PAUSE_S = 0.02

Tell = Callable[[], list[Whereabouts]]


class OtherHosts:
    """Questions and answers between the watchdogs of different hosts.

    They are messages on a separate communicator. No sender waits for its receiver, so stopped or
    dead ranks are only missing from the answer. Every rank answers for all ranks of its host.
    """

    def __init__(self, job: Job, here: Sequence[int]) -> None:
        """Connects all ranks of `job` together; `here` are those of this host."""
        self._comm = job.comm.Dup()
        self._elsewhere = [rank for rank in range(job.size) if rank not in set(here)]
        self._sent: list[Any] = []

    def close(self) -> None:
        """Frees the communicator; all ranks together."""
        self._comm.Free()

    def answer(self, tell: Tell) -> None:
        """Answers all questions received since the last call."""
        while self._elsewhere and (message := self._comm.improbe(tag=_ASK)):
            asker = message.recv()
            self._sent.append(self._comm.isend(tell(), dest=asker, tag=_TELL))

    def ask(self, tell: Tell, longest_s: float) -> list[Whereabouts]:
        """Answers of other hosts that arrive in time; meanwhile answers their questions."""
        for rank in self._elsewhere:
            self._sent.append(self._comm.isend(self._comm.Get_rank(), dest=rank, tag=_ASK))
        found: dict[int, Whereabouts] = {}
        end_s = time.monotonic() + longest_s
        while len(found) < len(self._elsewhere) and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)
            self.answer(tell)
            while message := self._comm.improbe(tag=_TELL):
                found |= {where.rank: where for where in message.recv()}
        return list(found.values())
