"""A word in the memory of one rank, which the first rank to swap it gets."""

from contextlib import suppress
from threading import Thread

import numpy as np

from dynapipe_hpc.job.world import MPI

_MAX_ASK_S = 1.0


class FirstClaim:
    """A word that can be claimed once, with one atomic access, by one rank of the world.

    It has an MPI window of its own: accesses to a rank that hangs block all others that are made
    to the same window.
    """

    def __init__(self, owner: int) -> None:
        """Makes the word in the memory of rank `owner`; called by all ranks together."""
        self._owner = owner
        is_own = MPI.COMM_WORLD.Get_rank() == owner
        self._window = MPI.Win.Allocate(8 if is_own else 0, 1, comm=MPI.COMM_WORLD)
        self._window.Lock_all()
        if is_own:
            self._window.Accumulate(np.zeros(1, np.int64), owner, 0, MPI.REPLACE)
            self._window.Flush(owner)
        MPI.COMM_WORLD.Barrier()

    def claim(self) -> bool | None:
        """Whether no rank has claimed the word before; None if its owner does not answer."""
        answers: list[bool] = []
        # In a thread, because the owner may be the rank that hangs.
        asking = Thread(target=lambda: answers.append(self._swap()), daemon=True)
        asking.start()
        asking.join(_MAX_ASK_S)
        return answers[0] if answers else None

    def close(self) -> None:
        """Releases the word; called by all ranks together."""
        MPI.COMM_WORLD.Barrier()
        self._window.Unlock_all()
        self._window.Free()

    def _swap(self) -> bool:
        claim = np.zeros(1, np.int64)
        with suppress(MPI.Exception):
            self._window.Fetch_and_op(np.ones(1, np.int64), claim, self._owner, 0, MPI.REPLACE)
            self._window.Flush(self._owner)
        return not claim[0]
