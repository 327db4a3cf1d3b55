"""What ranks of other hosts know, asked for while their main threads are busy or hang."""

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

    They are messages on a communicator of their own: nobody waits for the receiver, so ranks that
    are stopped or gone only miss in the answer. Every rank tells of all ranks of its host.
    """

    def __init__(self, job: Job, here: Sequence[int]) -> None:
        """Connects all ranks of `job` together; `here` are those of this host."""
        self._comm = job.comm.Dup()
        self._elsewhere = [rank for rank in range(job.size) if rank not in set(here)]
        self._sent: list[Any] = []

    def close(self) -> None:
        """Leaves the other ranks; all together."""
        self._comm.Free()

    def answer(self, tell: Tell) -> None:
        """Tells all who have asked since the last call."""
        while self._elsewhere and (message := self._comm.improbe(tag=_ASK)):
            asker = message.recv()
            self._sent.append(self._comm.isend(tell(), dest=asker, tag=_TELL))

    def ask(self, tell: Tell, longest_s: float) -> list[Whereabouts]:
        """What the other hosts tell within a time; answers meanwhile, as they may ask too."""
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
