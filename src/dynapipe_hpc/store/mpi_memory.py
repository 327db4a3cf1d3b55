"""One-sided (RMA) memory: ranks of other hosts read and write it without the owner's help."""

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.job.host_memory import check_unified
from dynapipe_hpc.store.polling import poll

_HINTS = {"same_disp_unit": "true"}
# Counts of MPI are C ints unless the library has the large counts of MPI 4.
_BLOCK_BYTES = 1 << 30
_SHARE_OF_WAIT = 1e-2


class MpiMemory:
    """A passive-target MPI window: the owner of the memory takes no part in an access.

    The access epoch lasts as long as the MPI window, and takes no lock: readers know from the
    content whose turn it is. Each access is complete when its method returns. It is started with a
    request that is tested between pauses, since a call that waits inside MPI would occupy the core
    that the owner may need to answer; the flush that MPI requires afterwards finds nothing left to
    wait for. Threads may share the object.
    """

    def __init__(self, comm: MPI.Intracomm, memory: memoryview | None) -> None:
        """Opens `memory` of this rank, None for none; called by all ranks of `comm` together.

        Args:
            comm: The ranks that access, or own memory; this object frees it.
            memory: Memory in which other ranks may read and write.

        Raises:
            RunError: Loads of the owner would not find what other ranks write.
        """
        self._comm = comm
        info = MPI.Info.Create(_HINTS)
        self._window = MPI.Win.Create(memory, 1, info, comm)
        info.Free()
        check_unified(self._window)
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        """The `n_bytes` bytes at `offset` in the memory of rank `owner`."""
        data = np.empty(n_bytes, np.uint8)
        for start in range(0, n_bytes, _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            self._wait(self._window.Rget(block, owner, offset + start), owner)
        return data.tobytes()

    def write(self, owner: int, offset: int, message: bytes) -> None:
        """Sets the bytes at `offset` in the memory of rank `owner`."""
        whole = memoryview(message)
        for start in range(0, len(message), _BLOCK_BYTES):
            block = whole[start : start + _BLOCK_BYTES]
            self._wait(self._window.Rput(block, owner, offset + start), owner)

    def enter_mpi(self) -> None:
        """Gives MPI time to answer other ranks."""
        self._comm.Iprobe()

    def close(self) -> None:
        """Releases the memory; called by all ranks together."""
        self._comm.Barrier()  # no rank accesses the memory any more
        self._window.Unlock_all()
        self._window.Free()
        self._comm.Free()

    def _wait(self, request: MPI.Request, owner: int) -> None:
        poll(request.Test, _SHARE_OF_WAIT)
        self._window.Flush(owner)
