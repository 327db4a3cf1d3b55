"""One-sided (RMA) memory: every rank of a job reads and writes it without the owner's help."""

import threading

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.store import reasons
from dynapipe_hpc.store.plan_store import PlanStoreError


class MpiMemory:
    """A passive-target MPI window: the owner of the memory takes no part in an access.

    The access epoch lasts as long as the MPI window, and each access is complete when its method
    returns. Words are 8-byte integers, accessed atomically. Access to plain bytes is not atomic
    and needs a word that says whose turn it is. Threads may share the object.
    """

    def __init__(self, comm: MPI.Intracomm, n_bytes: int) -> None:
        """Opens `n_bytes` (>= 0) of this rank's memory; called by all ranks of `comm` together.

        Raises:
            PlanStoreError: MPI does not allow several threads to communicate.
        """
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise PlanStoreError(
                "planning beside execution needs MPI_THREAD_MULTIPLE, but the MPI library "
                "grants less; set MPI4PY_RC_THREAD_LEVEL=multiple or use another MPI library"
            )
        self._comm = comm.Dup()
        # MPI can access memory that it has allocated itself without the owner's help.
        self._window = MPI.Win.Allocate(n_bytes, 1, comm=self._comm)
        self._window.Lock_all()
        self._turn = threading.Lock()

    def wait_for_all(self) -> None:
        """Barrier: returns when all ranks have called it."""
        self._comm.Barrier()

    def read_word(self, owner: int, offset: int) -> int:
        """The word at `offset` bytes in the memory of rank `owner`."""
        window, word = self._opened(), np.empty(1, np.int64)
        with self._turn:
            window.Fetch_and_op(np.zeros(1, np.int64), word, owner, offset, MPI.NO_OP)
            window.Flush(owner)
        return int(word[0])

    def write_word(self, owner: int, offset: int, value: int) -> None:
        """Sets the word at `offset` bytes in the memory of rank `owner`."""
        window, word = self._opened(), np.array([value], np.int64)
        with self._turn:
            window.Accumulate(word, owner, offset, MPI.REPLACE)
            window.Flush(owner)

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        """The `n_bytes` bytes at `offset` in the memory of rank `owner`."""
        window, message = self._opened(), bytearray(n_bytes)
        with self._turn:
            window.Get(message, owner, offset)
            window.Flush(owner)
        return bytes(message)

    def write(self, owner: int, offset: int, message: bytes) -> None:
        """Sets the bytes at `offset` in the memory of rank `owner`."""
        window = self._opened()
        with self._turn:
            window.Put(message, owner, offset)
            window.Flush(owner)

    def enter_mpi(self) -> None:
        """Gives MPI time to answer other ranks, unless an access in another thread is doing so."""
        if self._turn.acquire(blocking=False):
            try:
                self._comm.Iprobe()
            finally:
                self._turn.release()

    def close(self) -> None:
        """Releases the memory; called by all ranks together."""
        window = self._opened()
        self._comm.Barrier()
        window.Unlock_all()
        window.Free()
        self._comm.Free()

    def _opened(self) -> MPI.Win:
        if not self._window:
            raise reasons.closed()
        return self._window
