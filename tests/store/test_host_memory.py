from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.store.mpi import HostMemory, check_unified


def test_bytes_are_read_as_written() -> None:
    memory = HostMemory(MPI.Intracomm(MPI.COMM_SELF.Dup()), 32)
    memory.part(0)[:] = bytes(32)
    memory.write(0, 16, b"ten bytes.")
    assert memory.read(0, 15, 12) == b"\0ten bytes.\0"
    memory.close()


def test_memory_that_mpi_copies_is_refused() -> None:
    window: Any = SimpleNamespace(model=MPI.WIN_SEPARATE)
    with pytest.raises(RunError, match=r"a second copy of memory that ranks share .* OMPI_MCA_osc"):
        check_unified(window)
