"""Signals to real ranks: those that ask a job to stop, and those that end it."""

import signal
import time
from pathlib import Path

import pytest
from tests.oracles.real_job import RUN, real_job, write_job_files

from dynapipe_hpc.report.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LONGEST_END_S = 30
ENDLESS = ("--set", "training.iterations=1000000", "--set", "checkpoint.every=1000")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job")
    write_job_files(path)
    return path


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_one_rank_that_is_asked_stops_all_after_the_same_iteration(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with real_job(folder, 4, *RUN, *ENDLESS, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(2, number)
        ended = job.wait(LONGEST_END_S)
    assert ended.exit_code == 75, ended.err
    assert ended.messages == [f"dynapipe-hpc: stopped by {number.name}; start again to go on"]
    assert len(RunFolder.open(tmp_path / "run").records()) >= 3


def test_a_launcher_forwards_a_request_to_all_ranks(folder: Path, tmp_path: Path) -> None:
    with real_job(folder, 4, *RUN, *ENDLESS, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.process.send_signal(signal.SIGUSR1)
        ended = job.wait(LONGEST_END_S)
    assert ended.exit_code == 75, ended.err
    assert ended.messages == ["dynapipe-hpc: stopped by SIGUSR1; start again to go on"]


def test_an_interrupted_rank_ends_all_at_once(folder: Path, tmp_path: Path) -> None:
    with real_job(folder, 4, *RUN, *ENDLESS, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(1, signal.SIGINT)
        ended = job.wait(LONGEST_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGINT"]


def test_a_second_request_ends_a_job_that_cannot_stop(folder: Path, tmp_path: Path) -> None:
    """A stopped rank keeps the others from ending their iteration."""
    with real_job(folder, 4, *RUN, *ENDLESS, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("iteration 2:")
        job.send(3, signal.SIGSTOP)
        job.send(1, signal.SIGTERM)
        time.sleep(3.0)  # signals within two seconds count as one
        assert job.process.poll() is None
        job.send(1, signal.SIGTERM)
        ended = job.wait(LONGEST_END_S)
    assert ended.exit_code == 130, ended.err
    assert ended.messages == ["dynapipe-hpc: ended by SIGTERM"]
