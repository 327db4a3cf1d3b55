"""Failures and signals that end a job, and their messages. Real ranks, really broken."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.jobs.command_line import ONE_REPLICA
from tests.jobs.listening import open_to_others
from tests.jobs.real_job import RUN, Ended, real_job

from dynapipe_hpc.experiment.run.explain_run import explain_run
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MAX_END_S = 30
MAX_JOB_S = 280
ENDLESS = ("--set", "training.iterations=1000000")
INSTRUCTION = r"instruction \d+ \(\w+ [^)]+\)(, micro-batch \d+ of \d+ x \d+ tokens)?(, peer \d)?"


def only_message(ended: Ended) -> str:
    assert len(ended.messages) == 1, ended.err
    return ended.messages[0]


def test_a_killed_rank_is_told_of_by_another(folder: Path, tmp_path: Path) -> None:
    rank = 0  # which else would decide who speaks
    with real_job(folder, 2, *RUN, *ENDLESS, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 3:")
        job.send(rank, signal.SIGKILL)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code not in (0, 2)
    told = rf"rank \d on \S+ ends the job: rank {rank} on \S+ was killed, or crashed "
    told += r"\(its process was \d+\)"
    assert re.search(told, only_message(ended))
    assert len(list(RunFolder.open(tmp_path / "run").records())) >= 4
    assert f"rank {rank} on" in explain_run(tmp_path / "run")


def test_a_stopped_rank_is_found_by_the_watchdogs(folder: Path, tmp_path: Path) -> None:
    rank = 3
    limit = ("--set", "executor.timeout_s=3")
    with real_job(folder, 4, *RUN, *ENDLESS, *limit, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 3:")
        job.send(rank, signal.SIGSTOP)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 1
    message = only_message(ended)
    assert f"no progress here for 3 s (executor.timeout_s); rank {rank} on" in message
    assert "(process stopped)" in message
    table = ended.err.partition("\nrank  ")[2].splitlines()[1:5]
    (stopped,) = [line for line in table if line.split()[:3:2] == ["3", "stopped"]]
    explained = explain_run(tmp_path / "run")
    assert stopped in explained
    hangs = re.findall(r"^rank (\d) on \S+ at iteration \d+, .*:$", explained, re.MULTILINE)
    assert hangs == ["0", "1", "2"]
    # Their stacks; where they wait depends on where the other was stopped.
    assert re.search("in (launch_plan|_reduced)$", explained, re.MULTILINE)
    assert not any(line.startswith("no answer") for line in table)


@pytest.mark.parametrize("timeout_s", [2, 60])
def test_a_checkpoint_that_is_not_written_has_a_limit_of_its_own(
    timeout_s: int, folder: Path, tmp_path: Path
) -> None:
    """Nobody reads the pipe, so the rank that opens it waits."""
    run = tmp_path / "run"
    limits = ("--set", f"executor.timeout_s={timeout_s}", "--set", "checkpoint.timeout_s=5")
    every = (*ONE_REPLICA, "--set", "checkpoint.every=50")
    with real_job(folder, 2, *RUN, *ENDLESS, *limits, *every, "-o", str(run)) as job:
        job.wait_for_line("iteration 3:")
        partial = run / "checkpoints" / ".000050.partial"
        partial.mkdir(parents=True, exist_ok=True)
        os.mkfifo(partial / "part-00001.bin")
        ended = job.wait(MAX_JOB_S)
    assert ended.exit_code == 1
    told = r"no progress here for 5 s \(checkpoint.timeout_s\); rank \d on .* writes a checkpoint"
    assert re.search(told, only_message(ended))
    # Both ranks had written where they are before the first ended the job.
    assert "no answer" not in ended.err


def test_a_dataset_that_is_cut_while_it_is_read_is_named(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cut.h5"
    copy.write_bytes((folder / "corpus.h5").read_bytes())
    data = (*ONE_REPLICA, "--set", f"data.dataset={copy}")
    with real_job(folder, 2, *RUN, *ENDLESS, *data, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 3:")
        os.truncate(copy, 1000)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 1
    assert re.search(
        rf"iteration \d+, rank \d, {INSTRUCTION}: \S+cut.h5: cannot read sample \d+",
        only_message(ended),
    )
    assert "Traceback" not in ended.err


UNSAVED = ("--set", "training.iterations=1000000", "--set", "checkpoint.every=1000")


def test_one_rank_that_is_asked_stops_all_after_the_same_iteration(
    folder: Path, tmp_path: Path
) -> None:
    traced = ("--set", "report.trace_iterations=3")
    with real_job(folder, 4, *RUN, *UNSAVED, *traced, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 3:")
        assert [open_to_others(job.pid_of(rank)) for rank in range(4)] == [[]] * 4
        job.send(2, signal.SIGTERM)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 75, ended.err
    assert ended.messages == ["dynapipe-hpc: stopped by SIGTERM; start again to continue"]
    timelines = RunFolder.open(tmp_path / "run").timelines()
    assert [each.iteration for each in timelines] == [0, 1, 2]
    assert {rank for each in timelines for rank in each.ranks} == {0, 1, 2, 3}
    assert explain_run(tmp_path / "run").startswith("stopped: ")
    n_done = len(list(RunFolder.open(tmp_path / "run").records()))
    assert n_done >= 3
    checkpoints = CheckpointFolder(tmp_path / "run" / "checkpoints", CheckpointConfig())
    assert [path.name for path in checkpoints.complete()] == [f"{n_done:06d}"]


def test_an_interrupted_rank_ends_all_at_once(folder: Path, tmp_path: Path) -> None:
    with real_job(folder, 2, *RUN, *UNSAVED, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(1, signal.SIGINT)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGINT"]


def test_a_second_request_ends_a_job_that_cannot_stop(folder: Path, tmp_path: Path) -> None:
    """A stopped rank keeps the other from ending its iteration."""
    with real_job(folder, 2, *RUN, *UNSAVED, *ONE_REPLICA, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(1, signal.SIGSTOP)
        job.send(0, signal.SIGTERM)
        time.sleep(3.0)  # signals within two seconds count as one
        assert job.process.poll() is None
        job.send(0, signal.SIGTERM)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGTERM"]
