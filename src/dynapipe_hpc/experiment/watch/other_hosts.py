"""Queries to ranks on other hosts, answered even while their main threads are busy or hang."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dynapipe_hpc.experiment.watch.rank_status import RankStatus
from dynapipe_hpc.job.job import Job

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
