import _ctypes
import os
import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest

from dynapipe_hpc.job.launch import OF_RANKS, mpi_settings, read_started

LOAD_ANOTHER_MPI = """
import ctypes, os, sys
from dynapipe_hpc.job.launch import read_started
from dynapipe_hpc.job.launch import is_own_open_mpi

sys.prefix = sys.argv[1]
ctypes.CDLL(f"{sys.prefix}/lib/libmpi.so.12")
print(is_own_open_mpi())
"""
FILES = "OMPI_MCA_mca_base_param_files"


def alone(program: str, *arguments: str) -> str:
    launched = ("PMI", "OMPI", "PMIX")
    environment = {n: value for n, value in os.environ.items() if not n.startswith(launched)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_a_process_alone_has_no_shared_memory_that_it_could_leave_behind() -> None:
    program = (
        "from pathlib import Path; import dynapipe_hpc.job.world\n"
        "print([f for f in Path('/proc/self/maps').read_text().split() if '/dev/shm' in f])"
    )
    assert alone(program) == "[]\n"


def test_another_mpi_in_the_environment_is_not_taken_for_open_mpi(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    copy(_ctypes.__file__, tmp_path / "lib" / "libmpi.so.12")  # as a wheel of MPICH has it
    assert alone(LOAD_ANOTHER_MPI, str(tmp_path)) == "False\n"


def test_settings_are_for_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILES, raising=False)
    before = dict(os.environ)
    with mpi_settings(read_started({}, 1), os.environ, is_own=True):
        assert os.environ[FILES].endswith(f",{OF_RANKS}")
    assert dict(os.environ) == before


@pytest.mark.parametrize("is_own", [True, False])
def test_a_home_is_there_where_the_environment_has_none(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    with mpi_settings(read_started({}, 1), os.environ, is_own=is_own):
        assert Path(os.environ["HOME"]).is_absolute()
    assert "HOME" not in os.environ


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not a virtual environment")
def test_the_settings_are_in_the_environment_where_mpiexec_reads_them() -> None:
    for settings in OF_RANKS.parent.glob("*.conf"):
        installed = Path(sys.prefix) / "etc" / settings.name
        assert installed.read_text() == settings.read_text()
