"""Memory of other hosts, by one-sided access that polls for its answer."""

import math
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.job.host_memory import check_unified

# A pause of any length takes longer than this, and so does what a busy core is given.
_WITHOUT_PAUSE_S = 50e-6
_MAX_PAUSE_S = 2e-3


def poll(
    ready: Callable[[], bool],
    share: float,
    timeout_s: float = math.inf,
    longest_pause_s: float = _MAX_PAUSE_S,
) -> bool:
    """Calls `ready` until it returns True; returns whether it did so within `timeout_s`.

    After the first 50 us it sleeps between calls, so that a wait never occupies the core that
    another process needs to end it. It sleeps for a `share` of the time waited so far, at most
    `longest_pause_s`, in addition to the some 60 us that the shortest sleep takes. Pauses should be
    short where `ready` enters MPI, as that may be what moves a transfer along.
    """
    start_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            return False
        if waited_s > _WITHOUT_PAUSE_S:
            time.sleep(min(share * waited_s, longest_pause_s))
    return True


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

        It frees `comm`. Raises `RunError` if loads of the owner would not find what others write.
        """
        self._comm = comm
        info = MPI.Info.Create(_HINTS)
        self._window = MPI.Win.Create(memory, 1, info, comm)
        info.Free()
        check_unified(self._window)
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        data = np.empty(n_bytes, np.uint8)
        for start in range(0, n_bytes, _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            self._wait(self._window.Rget(block, owner, offset + start), owner)
        return data.tobytes()

    def write(self, owner: int, offset: int, message: bytes) -> None:
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
