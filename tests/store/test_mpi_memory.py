import os
import subprocess
import sys

import pytest
from mpi4py import MPI

from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.plan_store import PlanStoreError


def test_words_and_bytes_are_read_as_written() -> None:
    memory = MpiMemory(MPI.COMM_SELF, 32)
    memory.write_word(0, 8, -(2**40))
    memory.write(0, 16, b"bytes")
    assert memory.read_word(0, 8) == -(2**40)
    assert memory.read(0, 16, 5) == b"bytes"
    memory.close()


def test_closed_memory_is_not_used() -> None:
    memory = MpiMemory(MPI.COMM_SELF, 8)
    memory.close()
    with pytest.raises(PlanStoreError, match="the plan store is closed"):
        memory.read_word(0, 0)


def test_an_mpi_without_threads_is_refused() -> None:
    open_memory = (
        "from mpi4py import MPI; from dynapipe_hpc.store.mpi_memory import MpiMemory; "
        "MpiMemory(MPI.COMM_SELF, 8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", open_memory],
        env=os.environ | {"MPI4PY_RC_THREAD_LEVEL": "serialized"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "needs MPI_THREAD_MULTIPLE, but the MPI library grants less; set" in done.stderr
