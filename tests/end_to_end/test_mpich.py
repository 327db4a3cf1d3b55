"""A run under MPICH: it is killed, resumed, interrupted, resumed, and completed."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.jobs.command_line import columns
from tests.jobs.job_files import ONE_REPLICA
from tests.jobs.mpi_implementations import HOW_TO_GET_MPICH, MPICH
from tests.jobs.real_job import RUN, Ended, RealJob, real_job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not MPICH.exists(), reason=HOW_TO_GET_MPICH),
]

LONGEST_END_S = 30
LONGEST_JOB_S = 280
N_ITERATIONS = 8
SETTINGS = (*ONE_REPLICA, "--set", "checkpoint.every=2", "-o")
ENDLESS = ("--set", "training.iterations=1000000")
ENOUGH = ("--set", f"training.iterations={N_ITERATIONS}")


def test_a_run_survives_what_ends_its_jobs(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # mpiexec kills the other ranks before they can say why, or while one of them does.
    killed = broken_off(folder, run, 3, lambda job: job.send(1, signal.SIGKILL))
    assert killed.exit_code == 9
    interrupted = broken_off(folder, run, 5, lambda job: job.process.send_signal(signal.SIGINT))
    assert interrupted.exit_code == 130
    assert interrupted.messages[-1] == "dynapipe-hpc: ended by SIGINT"
    with real_job(folder, 2, *RUN, *ENOUGH, *SETTINGS, str(run), mpi=MPICH) as job:
        ended = job.wait(LONGEST_JOB_S)
    assert ended.exit_code == 0, ended.err
    assert "iteration 3:" not in ended.out  # it was resumed
    assert columns(run, "iteration")[0] == list(range(N_ITERATIONS))


def broken_off(folder: Path, run: Path, after: int, end: Callable[[RealJob], object]) -> Ended:
    """What was left of a job that was ended after an iteration; its shared memory is removed."""
    with real_job(folder, 2, *RUN, *ENDLESS, *SETTINGS, str(run), mpi=MPICH) as job:
        job.wait_for_line(f"iteration {after}:")
        maps = Path(f"/proc/{job.pid_of(0)}/maps").read_text()
        (shared,) = set(re.findall(r"/\S+/mpich_shm_\S+", maps))
        end(job)
        ended = job.wait(LONGEST_END_S)
    Path(shared).unlink()  # nobody else does
    return ended
