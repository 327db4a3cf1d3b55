"""Checkpoints one after the other on a rank; tests/mpi has those of several."""

import time
from pathlib import Path

import pytest
from tests.jobs.command_line import run_python
from tests.mpi.test_training import Training

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.run.open_run import LossHistory
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig


def test_room_is_asked_for_when_old_checkpoints_have_been_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CheckpointConfig(every=1, keep_last=1)
    training = Training(tmp_path, config, lambda: time.sleep(0.1))
    names_when_asked = list[list[str]]()

    def ask(_: int) -> None:
        names_when_asked.append([each.name for each in training.folder.complete()])

    monkeypatch.setattr(training.folder, "check_room", ask)
    for n_done in (1, 2, 3):
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.finish()
    assert names_when_asked == [[], ["000001"], ["000002"]]


def test_a_lost_lock_ends_a_run_that_has_no_room_for_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        time.sleep(0.1)
        raise RunError("the lock is gone")

    def refuse(_: int) -> None:
        raise RunError("no room")

    training = Training(tmp_path, CheckpointConfig(every=1), lose)
    training.checkpoints.save_if_due(1)
    monkeypatch.setattr(training.folder, "check_room", refuse)
    with pytest.raises(RunError, match="the lock is gone"):
        training.checkpoints.save_now(2)


def test_a_checkpoint_that_takes_too_long_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Training(tmp_path, CheckpointConfig(every=10)).checkpoints
    for took_s in (0.0, 199.0, 201.0, 299.0, 301.0):
        checkpoints.took_s = took_s
        checkpoints.check_time(20_000)
    (told,) = capsys.readouterr().err.splitlines()
    assert "takes 201.0 s, but checkpoint.every = 10 iterations take only 200.0 s" in told


def test_a_run_that_could_not_stop_in_time_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Training(tmp_path, CheckpointConfig()).checkpoints
    for took_s in (279.0, 281.0):
        checkpoints.took_s = took_s
        checkpoints.check_time(20_000)
    (told,) = capsys.readouterr().err.splitlines()
    assert "an iteration and a checkpoint take 301.0 s" in told


@pytest.mark.parametrize(("keeps", "left"), [(True, ["000002", "000003"]), (False, ["000003"])])
def test_the_best_state_is_saved_and_kept(tmp_path: Path, keeps: bool, left: list[str]) -> None:
    config, history = CheckpointConfig(every=3, keep_last=1, keep_best=keeps), LossHistory(0)
    training = Training(tmp_path, config, history=history)
    for n_done, loss in enumerate((3.0, 1.0, 2.0, 2.5, 2.0), 1):
        history.add(n_done, loss)
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.finish()
    assert [each.name for each in reversed(training.folder.complete())] == left


ASKED_TWICE = """
import os, signal, time
from dynapipe_hpc.job.job import Ending
from dynapipe_hpc.job.job import StopRequests

stop = StopRequests()
stop.listen(Ending())
with stop.observed():
    os.kill(os.getpid(), signal.SIGUSR1)
    while not stop.asked:
        time.sleep(0.01)
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.5)
print("goes on")
"""


def test_a_request_that_comes_twice_does_not_end_a_run_that_stops() -> None:
    ended = run_python(ASKED_TWICE)
    assert (ended.returncode, ended.stdout) == (0, "goes on\n"), ended.stderr
