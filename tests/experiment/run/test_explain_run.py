import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.examples.example_runs import record
from tests.jobs.asked_doctor import ALONE
from tests.jobs.command_line import run_command
from tests.jobs.lock_processes import leave_lock

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.run.explain_run import explain_run, read_end
from dynapipe_hpc.experiment.run_lock import LockHolder, RunLock, locked, writer_of
from dynapipe_hpc.job import job as module
from dynapipe_hpc.job.job import Ending
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.report.records import log_line
from dynapipe_hpc.report.run_folder import RunFolder

HANG = (
    "rank 1 on n1 ends the job: no progress here for 600 s (executor.timeout_s); rank 3 on n2 "
    "(process stopped) has been at iteration 4 for 600 s\n"
    "rank  host  process\n"
    "3     n2    stopped"
)

WITHOUT_TIME = '{"how": "failed", "exit_code": 1, "message": "", "time": "noon", "host": "n1"}'
LONG_AGO = WITHOUT_TIME.replace("noon", "0001-01-01T00:00+09:00")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with five iterations and two checkpoints."""
    folder = RunFolder.create(tmp_path / "run", "", {})
    for k in range(5):
        folder.add(record(k))
    for name in ("000002", "000004", ".000006.partial"):
        (tmp_path / "run" / "checkpoints" / name).mkdir(parents=True)
    return tmp_path / "run"


def ended(run: Path, how: JobOutcome, exit_code: int, message: str) -> list[str]:
    """The explanation after an end that was recorded."""
    ending = Ending()
    ending.file = run / "ended.json"
    ending.record(how, exit_code, message)
    return explain_run(run).splitlines()


def test_a_completed_run_says_how_to_continue(run: Path) -> None:
    lines = ended(run, JobOutcome.COMPLETED, 0, "all iterations are done")
    assert re.fullmatch(r"completed: \d{4}-\S+[+-]\d\d:\d\d on \S+, exit code 0", lines[0])
    assert lines[1:] == [
        "  all iterations are done",
        "next: dynapipe-hpc report shows the run; to continue, make it longer in [training]",
        f"last at 2026-05-04T03:02:01.000+02:00: {log_line(record(4))}",
        "newest checkpoint: after 4 iterations",
    ]


def test_a_failure_has_its_message_and_what_to_do(run: Path) -> None:
    text = "\n".join(ended(run, JobOutcome.FAILED, 1, HANG))
    assert f"\n  {HANG}\nnext: correct what the message names; then start the same" in text


def test_a_run_that_is_gone_without_a_word_was_killed(run: Path) -> None:
    lines = explain_run(run).splitlines()
    assert lines[0].startswith("killed: the run is gone, and no rank said why")


@pytest.mark.parametrize(
    ("silent_s", "told"),
    [(3, "still running: process 12 on n9"), (300, "no sign of life for 5m00: process 12 on n9")],
)
def test_a_run_on_another_host_lives_if_it_gives_signs(
    run: Path, silent_s: float, told: str
) -> None:
    touched_s = time.time() - silent_s
    os.utime(leave_lock(run, job=""), (touched_s, touched_s))
    assert explain_run(run).startswith(told)


def test_the_end_of_an_earlier_start_is_not_that_of_a_run_that_starts_again(run: Path) -> None:
    ended(run, JobOutcome.FAILED, 1, "the disk is gone")
    path = run / "ended.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"time": "2026-05-04T03:02:01.000+02:00"})
    )
    with locked(ALONE, run):
        lines = explain_run(run).splitlines()
    assert lines[0].startswith(f"still running: process {os.getpid()} on ")


def test_an_end_counts_while_its_process_still_holds_the_lock(run: Path) -> None:
    with locked(ALONE, run):
        lines = ended(run, JobOutcome.FAILED, 1, "the disk is gone")
    assert lines[0].startswith("failed: ")


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = RunLock(run)
    lock.acquire()

    def look_after_the_end(folder: Path) -> LockHolder | None:
        ending = Ending()
        ending.file = run / "ended.json"
        ending.record(JobOutcome.COMPLETED, 0, "all iterations are done")
        lock.release()
        return writer_of(folder)

    monkeypatch.setitem(explain_run.__globals__, "writer_of", look_after_the_end)
    assert explain_run(run).startswith("completed: ")


def test_a_lock_file_that_goes_while_it_is_looked_at_is_no_error(run: Path) -> None:
    (run / ".lock").mkdir()
    (run / ".lock" / "0.json").symlink_to("gone")
    assert explain_run(run).startswith("killed: ")


def test_a_resumed_run_has_not_ended(run: Path) -> None:
    ended(run, JobOutcome.STOPPED, 75, "stopped by SIGTERM")
    RunFolder.resume(run, "", {}, 4)
    assert read_end(run) is None


def test_a_disk_that_fails_does_not_keep_a_job_from_ending(tmp_path: Path) -> None:
    ending = Ending()
    ending.file = tmp_path / "gone" / "ended.json"
    ending.record(JobOutcome.FAILED, 1, "the disk is gone")
    assert not (tmp_path / "gone").exists()


def test_a_disk_that_hangs_does_not_keep_a_job_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    ending = Ending()
    monkeypatch.setattr(module, "_write_end", lambda *_: hanging.wait(4))
    ending.file = Path("ended.json")
    started_s = time.monotonic()
    ending.record(JobOutcome.FAILED, 1, "the disk hangs")
    assert time.monotonic() - started_s < 3
    hanging.set()


@pytest.mark.parametrize("text", ["{", "[]", '{"how": "well"}', WITHOUT_TIME, LONG_AGO])
def test_a_damaged_record_is_named(run: Path, text: str) -> None:
    (run / "ended.json").write_text(text)
    with pytest.raises(InputError, match=r"ended.json: not a record of how .*remove the file"):
        explain_run(run)


def test_a_run_is_explained_where_there_is_no_mpi(run: Path) -> None:
    """As on many login nodes."""
    command = (sys.executable, "-m", "dynapipe_hpc", "explain", run)
    told = run_command(*command, variables={"MPI4PY_LIBMPI": "none.so"})
    assert "MPI" not in told.stderr
    assert "5" in told.stdout


def test_a_line_that_is_being_written_is_not_yet_read(run: Path) -> None:
    with (run / "iterations.jsonl").open("a") as file:
        file.write('{"iteration": 5')
    assert log_line(record(4)) in explain_run(run)
