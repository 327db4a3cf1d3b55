"""Signals to real ranks: those that ask a job to stop, and those that end it."""

import re
import signal
import time
from pathlib import Path

import pytest
from tests.jobs.command_line import columns
from tests.jobs.job_files import ONE_REPLICA
from tests.jobs.listening import open_to_others
from tests.jobs.real_job import RUN, real_job

from dynapipe_hpc.experiment.run.explain_run import explain_run
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MAX_END_S = 30
MAX_JOB_S = 280
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


def test_a_run_that_would_be_too_slow_to_stop_is_ended(folder: Path, tmp_path: Path) -> None:
    hasty = (*ONE_REPLICA, "--set", "checkpoint.every=2", "--set", "checkpoint.grace_s=0.001")
    with real_job(folder, 2, *RUN, *ENDLESS, *hasty, "-o", str(tmp_path / "run")) as job:
        ended = job.wait(MAX_JOB_S)
    assert ended.exit_code == 1
    told = r"rank 0 on \S+ ends the job: checkpoint.grace_s is 0.001, but an iteration takes"
    assert any(re.search(told, message) for message in ended.messages), ended.err


def test_a_launcher_forwards_a_request_to_all_ranks(folder: Path, tmp_path: Path) -> None:
    with real_job(folder, 2, *RUN, *ENDLESS, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.process.send_signal(signal.SIGUSR1)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 75, ended.err
    assert ended.messages == ["dynapipe-hpc: stopped by SIGUSR1; start again to continue"]


def test_a_second_start_is_refused_while_the_first_trains_on(folder: Path, tmp_path: Path) -> None:
    one_rank = (*ONE_REPLICA, "--set", "cluster.n_stages=1")
    words = (*RUN, *ENDLESS, *one_rank, "-o", str(tmp_path / "run"))
    with real_job(folder, 1, *words) as first:
        first.wait_for_line("iteration 2:")
        with real_job(folder, 1, *words) as second:
            refused = second.wait(MAX_JOB_S)
        first.send(0, signal.SIGUSR1)
        ended = first.wait(MAX_END_S)
    assert (refused.exit_code, ended.exit_code) == (2, 75)
    (told,) = refused.messages
    assert re.search(r"run: in use by another run, process \d+ on .*; wait for its end", told)
    iterations = [int(i) for i in columns(tmp_path / "run", "iteration")[0]]
    assert iterations == list(range(len(iterations)))
    assert not (tmp_path / "run" / ".lock").exists()


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
