"""Processes whose launcher and MPI library do not fit. Real ones, of two MPI implementations."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.jobs.command_line import run_command
from tests.jobs.mpi_implementations import HOW_TO_GET_MPICH, LIBRARY, MPICH, OPEN_MPI

pytestmark = pytest.mark.slow

needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason=HOW_TO_GET_MPICH)


def run(launcher: Path, library: Path, program: str) -> "subprocess.CompletedProcess[str]":
    """Starts two ranks with a launcher of one implementation and a library of one."""
    command = (launcher / "mpiexec", "-n", 2, sys.executable, "-c", program)
    return run_command(*command, variables=LIBRARY[library])


def messages_of(job: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc: ")]


@needs_mpich
@pytest.mark.parametrize(
    ("launcher", "library", "message"),
    [
        (MPICH, OPEN_MPI, "sees each of them alone: they would be 2 jobs of one rank; start them"),
        (OPEN_MPI, MPICH, "which offers PMIx, but the MPI library, MPICH"),
    ],
)
def test_ranks_of_another_mpi_never_start_alone(
    launcher: Path, library: Path, message: str
) -> None:
    program = (
        "import sys; from dynapipe_hpc.cli.main import main\n"
        "try: main(['run', 'none.toml', '-o', 'none'])\n"
        "finally: print(str('torch' in sys.modules) + '\\n', end='')"
    )
    job = run(launcher, library, program)
    assert job.returncode == 2
    assert set(job.stdout.split()) == {"False"}  # found before anything large was loaded
    assert len(messages_of(job)) == 1
    assert message in messages_of(job)[0]
    assert "suspicious" not in job.stderr


@needs_mpich
@pytest.mark.parametrize("implementation", [OPEN_MPI, MPICH])
def test_ranks_of_one_mpi_find_each_other(implementation: Path) -> None:
    program = (
        "from dynapipe_hpc.job.world import MPI, STARTED\n"
        "print(f'{MPI.COMM_WORLD.size} of {STARTED.size}\\n', end='')"
    )
    job = run(implementation, implementation, program)
    assert job.stdout.splitlines() == ["2 of 2", "2 of 2"], job.stderr


def test_a_machine_without_mpi_is_told_how_to_get_one() -> None:
    command = (OPEN_MPI / "dynapipe-hpc", "run", "none.toml", "-o", "none")
    missing = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "none.so"}
    job = run_command(*command, variables=missing)
    assert job.returncode == 2
    assert job.stderr.startswith("dynapipe-hpc: no MPI library can be loaded (libmpi.so")
    assert "MPI4PY_LIBMPI" in job.stderr
