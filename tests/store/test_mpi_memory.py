import pytest
from mpi4py import MPI

import dynapipe_hpc.store.mpi as mpi_memory
from dynapipe_hpc.store.mpi import MpiMemory


@pytest.mark.parametrize("block_bytes", [1 << 30, 3])
def test_bytes_are_read_as_written(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, too, as messages of more bytes than MPI can count need."""
    monkeypatch.setattr(mpi_memory, "_BLOCK_BYTES", block_bytes)
    window = memoryview(bytearray(32))
    memory = MpiMemory(MPI.Intracomm(MPI.COMM_SELF.Dup()), window)
    memory.write(0, 16, b"ten bytes.")
    assert memory.read(0, 15, 12) == b"\0ten bytes.\0"
    assert bytes(window[16:26]) == b"ten bytes."
    memory.close()
