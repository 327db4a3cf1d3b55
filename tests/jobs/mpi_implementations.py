"""Two implementations of MPI: Open MPI of this environment, and MPICH beside it."""

from collections.abc import Mapping
from pathlib import Path

from tests.jobs.command_line import BIN

OPEN_MPI = BIN
MPICH = Path(__file__).parents[2] / "build" / "mpich" / "bin"
HOW_TO_GET_MPICH = "needs MPICH: make build/mpich/.ready"

LIBRARY: Mapping[Path, Mapping[str, str]] = {
    OPEN_MPI: {},
    MPICH: {"MPI4PY_LIBMPI": str(MPICH.parent / "lib" / "libmpi.so.12")},
}
"""Environment with which Python loads the library that belongs to a folder of launchers."""
