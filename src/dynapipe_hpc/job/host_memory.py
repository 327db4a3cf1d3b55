"""Memory that the ranks of a host share."""

from typing import Any

from mpi4py import MPI

from dynapipe_hpc.data.errors import RunError


class HostMemory:
    """Memory that the ranks of a host load from and store to, without a call of MPI that waits.

    Every rank owns a part of it. What a rank has written is complete for every rank that sees a
    later write of it.
    """

    def __init__(self, comm: MPI.Intracomm, n_bytes: int) -> None:
        """Opens `n_bytes` of any content on each rank of `comm`, which this object frees."""
        self.comm = comm
        self._window = MPI.Win.Allocate_shared(n_bytes, 1, comm=comm)
        check_unified(self._window)
        self._window.Lock_all(MPI.MODE_NOCHECK)  # without an epoch, `Sync` would be an error
        self._parts = [_part_of(self._window, owner) for owner in range(comm.Get_size())]

    def part(self, owner: int) -> memoryview:
        return self._parts[owner]

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        self._window.Sync()
        return bytes(self._parts[owner][offset : offset + n_bytes])

    def write(self, owner: int, offset: int, message: bytes) -> None:
        self._parts[owner][offset : offset + len(message)] = message
        self._window.Sync()

    def close(self) -> None:
        """Releases the memory; the ranks of the host together."""
        self._parts.clear()  # views of the window, which must be gone before it is freed
        self._window.Unlock_all()
        self._window.Free()
        self.comm.Free()


def check_unified(window: MPI.Win) -> None:
    """Raises `RunError` unless loads find what other ranks have written, without an update."""
    if window.model != MPI.WIN_UNIFIED:
        raise RunError(
            "this MPI library keeps a second copy of memory that ranks share (its model of MPI "
            "windows is not MPI_WIN_UNIFIED); use another library, or another of its one-sided "
            "components (Open MPI: OMPI_MCA_osc)"
        )


def _part_of(window: MPI.Win, owner: int) -> memoryview:
    memory: Any = window.Shared_query(owner)[0]
    return memoryview(memory).cast("B")
