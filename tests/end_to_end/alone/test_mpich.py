"""A run under MPICH: it is killed, resumed, interrupted, resumed, and completed."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.jobs.command_line import ONE_REPLICA, columns
from tests.jobs.mpi_implementations import HOW_TO_GET_MPICH, MPICH
from tests.jobs.real_job import RUN, Ended, RealJob, real_job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not MPICH.exists(), reason=HOW_TO_GET_MPICH),
]

REPOSITORY = Path(__file__).parents[3]
MAX_END_S = 30
MAX_JOB_S = 280
SETTINGS = (*ONE_REPLICA, "--set", "checkpoint.every=2", "-o")
ENDLESS = ("--set", "training.iterations=1000000")


def test_a_run_survives_what_ends_its_jobs(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # mpiexec kills the other ranks before they can say why, or while one of them does.
    killed = broken_off(folder, run, 3, lambda job: job.send(1, signal.SIGKILL))
    assert killed.exit_code == 9
    interrupted = broken_off(folder, run, 5, lambda job: job.process.send_signal(signal.SIGINT))
    assert interrupted.exit_code == 130
    assert interrupted.messages[-1] == "dynapipe-hpc: ended by SIGINT"
    # The other rank may have trained until the very end.
    n_iterations = int(re.findall(r"iteration (\d+):", interrupted.out)[-1]) + 4
    enough = ("--set", f"training.iterations={n_iterations}")
    with real_job(folder, 2, *RUN, *enough, *SETTINGS, str(run), mpi=MPICH) as job:
        ended = job.wait(MAX_JOB_S)
    assert ended.exit_code == 0, ended.err
    assert "iteration 3:" not in ended.out  # it was resumed
    assert columns(run, "iteration")[0] == list(range(n_iterations))


def test_ranks_that_are_faster_do_not_silence_the_one_that_says_why(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.jobs.interrupted_job")
    with real_job(tmp_path, 4, *command, env={"PYTHONPATH": str(REPOSITORY)}, mpi=MPICH) as job:
        job.wait_for_line("waiting")
        job.process.send_signal(signal.SIGINT)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 130
    assert ended.messages == ["dynapipe-hpc: ended by SIGINT"]


def broken_off(folder: Path, run: Path, after: int, end: Callable[[RealJob], object]) -> Ended:
    """Output of a job that was ended after an iteration; its shared memory is removed."""
    with real_job(folder, 2, *RUN, *ENDLESS, *SETTINGS, str(run), mpi=MPICH) as job:
        job.wait_for_line(f"iteration {after}:")
        maps = Path(f"/proc/{job.pid_of(0)}/maps").read_text()
        (shared,) = set(re.findall(r"/\S+/mpich_shm_\S+", maps))
        end(job)
        ended = job.wait(MAX_END_S)
    Path(shared).unlink()  # nobody else does
    return ended
