"""Signals to real ranks: those that ask a job to stop, and those that end it."""

import re
import signal
import time
from pathlib import Path

import pytest
from tests.jobs.job_files import ONE_REPLICA
from tests.jobs.listening import open_to_others
from tests.jobs.real_job import RUN, real_job

from dynapipe_hpc.experiment.run.explain_run import explain_run
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MAX_END_S = 30
ENDLESS = ("--set", "training.iterations=1000000", "--set", "checkpoint.every=1000")


def test_one_rank_that_is_asked_stops_all_after_the_same_iteration(
    folder: Path, tmp_path: Path
) -> None:
    untraced = ("--set", "report.trace_iterations=0")
    with real_job(folder, 4, *RUN, *ENDLESS, *untraced, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        (tmp_path / "run" / "trace.request").write_text("+3")
        while len(list((tmp_path / "run" / "plans").glob("*.txt"))) < 3:
            time.sleep(0.05)
        assert [open_to_others(job.pid_of(rank)) for rank in range(4)] == [[]] * 4
        job.send(2, signal.SIGTERM)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 75, ended.err
    traced, stopped = ended.messages
    assert stopped == "dynapipe-hpc: stopped by SIGTERM; start again to continue"
    first = int(re.findall(r"iterations (\d+) to", traced)[0])
    timelines = RunFolder.open(tmp_path / "run").timelines()
    assert first >= 3
    assert [each.iteration for each in timelines] == [first, first + 1, first + 2]
    assert {rank for each in timelines for rank in each.ranks} == {0, 1, 2, 3}
    assert explain_run(tmp_path / "run").startswith("stopped: ")
    n_done = len(list(RunFolder.open(tmp_path / "run").records()))
    assert n_done >= 3
    checkpoints = CheckpointFolder(tmp_path / "run" / "checkpoints", CheckpointConfig())
    assert [path.name for path in checkpoints.complete()] == [f"{n_done:06d}"]


def test_an_interrupted_rank_ends_all_at_once(folder: Path, tmp_path: Path) -> None:
    with real_job(folder, 2, *RUN, *ENDLESS, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(1, signal.SIGINT)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGINT"]


def test_a_second_request_ends_a_job_that_cannot_stop(folder: Path, tmp_path: Path) -> None:
    """A stopped rank keeps the other from ending its iteration."""
    with real_job(folder, 2, *RUN, *ENDLESS, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(1, signal.SIGSTOP)
        job.send(0, signal.SIGTERM)
        time.sleep(3.0)  # signals within two seconds count as one
        assert job.process.poll() is None
        job.send(0, signal.SIGTERM)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGTERM"]
