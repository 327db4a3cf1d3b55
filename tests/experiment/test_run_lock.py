"""One run at a time writes a run folder: real processes, killed and stopped."""

import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from tests.jobs.lock_processes import HELD, holding, leave_lock, start_ready, tell

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.run_lock import RunLock, locked
from dynapipe_hpc.job.job import Job

PATIENCE_S = 0.3
N_STARTS = 4


def take(folder: Path) -> RunLock:
    lock = RunLock(folder, patience_s=PATIENCE_S)
    lock.acquire()
    return lock


def touching(path: Path) -> Callable[[], None]:
    """Touches a file until what is returned is called."""
    stopped = threading.Event()

    def touch() -> None:
        while not stopped.wait(0.02):
            path.touch()

    thread = threading.Thread(target=touch)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop


def test_a_second_start_is_told_who_writes_there_and_changes_nothing(tmp_path: Path) -> None:
    with holding(tmp_path / "run") as process:
        before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
        started_s = time.monotonic()
        told = (
            rf"run: in use by another run, process {process.pid} on {platform.node()}, "
            r"Slurm job 7, since \d{4}-.* UTC; wait for its end, stop it, or name another folder"
        )
        with pytest.raises(InputError, match=told):
            take(tmp_path / "run")
        assert time.monotonic() - started_s < 1
        assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before
    take(tmp_path / "run").release()


def test_the_lock_of_a_process_that_was_killed_is_taken_over_at_once(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        process.kill()
    started_s = time.monotonic()
    lock = RunLock(tmp_path)
    lock.acquire()
    took_s = time.monotonic() - started_s
    lock.release()
    assert took_s < 1


def test_another_process_with_the_number_of_the_first_holds_no_lock(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        (path,) = (tmp_path / ".lock").iterdir()
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({**facts, "process": {**facts["process"], "started": "1"}}))
        lock = take(tmp_path)
        assert not path.exists()
        lock.release()
        process.kill()


def test_a_holder_out_of_sight_that_gives_signs_of_life_keeps_its_lock(tmp_path: Path) -> None:
    path = leave_lock(tmp_path)
    stop = touching(path)
    with pytest.raises(InputError, match="process 12 on n9, Slurm job 7, since 2026-01-02"):
        RunLock(tmp_path).acquire()
    stop()
    assert path.exists()


@pytest.mark.parametrize(
    "changes", [{}, {"process": {"pid": -1}}, {"process": 3}, {"since": None}], ids=str
)
def test_a_holder_out_of_sight_without_a_sign_of_life_is_gone(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """After a reboot, for one: the time of a file says nothing, whichever it is."""
    path = leave_lock(tmp_path, **changes)
    os.utime(path, (2e9, 2e9))
    started_s = time.monotonic()
    take(tmp_path).release()
    assert time.monotonic() - started_s > PATIENCE_S
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 4000, "9" * 5000])
def test_of_a_lock_that_cannot_be_read_only_signs_of_life_count(
    tmp_path: Path, content: str
) -> None:
    path = leave_lock(tmp_path)
    path.write_text(content)
    stop = touching(path)
    with pytest.raises(InputError, match="whose lock file does not say which process it is"):
        take(tmp_path)
    stop()
    take(tmp_path).release()


def test_a_run_whose_folder_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    lock = take(tmp_path)
    lock.check()
    (path,) = (tmp_path / ".lock").iterdir()
    path.unlink()
    with pytest.raises(RunError, match=r"lock of this run is gone: it gave no sign .* 0\.3 s"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_simultaneous_starts_one_goes_on(tmp_path: Path, is_stale: bool) -> None:
    if is_stale:
        with holding(tmp_path) as process:
            process.kill()
    starts = [start_ready(tmp_path, "hold") for _ in range(N_STARTS)]
    for start in starts:
        tell(start)
    lines = [start.stdout.readline() for start in starts if start.stdout is not None]
    told = [start.communicate(timeout=60)[1] for start in starts]
    assert sorted(start.returncode for start in starts) == [0] + [2] * (N_STARTS - 1), told
    assert lines.count(HELD) == 1


def test_nobody_is_ever_beside_the_holder(tmp_path: Path) -> None:
    starts = [start_ready(tmp_path, "churn") for _ in range(3)]
    for start in starts:
        tell(start)
    assert [start.communicate(timeout=60) for start in starts] == [("", "")] * 3
    assert [start.returncode for start in starts] == [0, 0, 0]


ALONE = Job(MPI.COMM_SELF)


def lock_files(folder: Path) -> int:
    return len(list(folder.glob(".lock/*.json")))


def test_the_lock_stays_while_the_error_of_one_rank_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(RunError), locked(ALONE, tmp_path) as lock:
        raise RunError("the disk is gone")
    assert lock_files(tmp_path) == 1
    lock.release()
