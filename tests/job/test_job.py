"""Ranks of a job start together or not at all, and end together. Real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.jobs.command_line import BIN, ROOT, run_command, run_python
from tests.jobs.mpi_implementations import HOW_TO_GET_MPICH, LIBRARY, MPICH, OPEN_MPI

pytestmark = pytest.mark.slow

MAX_END_S = 10

A_THREAD_OF_RANK_1_FAILS = """
from threading import Thread
from dynapipe_hpc.job.job import open_job

def fail():
    print("failing", flush=True)
    raise OSError("the disk is gone")

with open_job() as job:
    if job.rank == 1:
        thread = Thread(target=fail)
        thread.start()
        thread.join()
    job.barrier()
"""


def test_an_error_in_a_thread_ends_all_ranks() -> None:
    with subprocess.Popen(
        [str(BIN / "mpiexec"), "-n", "2", sys.executable, "-c", A_THREAD_OF_RANK_1_FAILS],
        env={**os.environ, **ROOT, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "failing\n"
        started = time.monotonic()
        _, err = job.communicate(timeout=60)
    assert time.monotonic() - started < MAX_END_S
    assert job.returncode == 1
    assert "rank 1 on " in err
    assert "ends the job: the disk is gone" in err


A_RANK_FAILS_AFTER_THE_RUN = """
import sys
from pathlib import Path
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.job.ranks import JobOutcome

folder = Path(sys.argv[1])
with open_job() as job:
    with job.ending.recorded(folder / "ended.json"):
        pass
    job.ending.record(JobOutcome.COMPLETED, 0, "all iterations are done")
    raise OSError("the model cannot be written")
"""


def test_an_error_after_the_end_of_a_run_is_told(tmp_path: Path) -> None:
    ended = run_python(A_RANK_FAILS_AFTER_THE_RUN, tmp_path)
    assert ended.returncode == 1
    assert "ends the job: the model cannot be written" in ended.stderr


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
