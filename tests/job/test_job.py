"""Ranks of a job end together. Real processes: ending takes all of them along."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.jobs.command_line import BIN, ROOT, run_python

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
