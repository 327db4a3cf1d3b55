"""The samples of a run are compared with their checksums beside training."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import pytest
from tests.examples.tokenized import write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.run.dataset_check import DatasetCheck

MAX_S = 60.0


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Errors that left a thread; in a job they end all ranks."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda uncaught: found.append(uncaught.exc_value))
    return found


def checked(path: Path) -> None:
    """Waits until all samples are compared."""
    with DatasetFile(path) as dataset:
        wait_for(DatasetCheck(dataset))


def wait_for(check: DatasetCheck) -> None:
    """Returns when it has ended by itself."""
    ended_by = time.monotonic() + MAX_S
    while any(thread.name == "dataset check" for thread in threading.enumerate()):
        assert time.monotonic() < ended_by
        time.sleep(0.02)
    check.close()


def test_a_dataset_that_is_whole_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_samples(tmp_path / "x.h5")
    checked(path)
    told = "all samples agree with their checksums\n"
    assert capsys.readouterr().out == f"dataset {path}: {told}"


def test_a_damaged_dataset_ends_the_job(tmp_path: Path, errors: list[BaseException | None]) -> None:
    path = write_samples(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["inputs/tokens"][3] ^= 1
    checked(path)
    (error,) = errors
    assert isinstance(error, RunError)
    assert str(error).startswith(f"data.dataset: {path}: samples 0 to 2 of {path} are damaged:")


def test_damage_that_is_found_as_the_run_ends_ends_the_job(
    tmp_path: Path, errors: list[BaseException | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file["inputs/tokens"][3] ^= 1
    with DatasetFile(path) as dataset:
        check = DatasetCheck(dataset)
        monkeypatch.setattr(check, "_is_closed", True)  # as between the two steps of `close`
        wait_for(check)
    assert [type(error) for error in errors] == [RunError]


def test_the_folder_where_a_job_is_started_is_not_imported_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path / "x.h5")
    (tmp_path / "h5py.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    checked(path)
    assert "all samples agree with" in capsys.readouterr().out


def test_training_goes_on_without_a_process_that_cannot_be_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    checked(write_samples(tmp_path / "x.h5"))
    told = "(cannot start a process: No such file or directory); dynapipe-hpc inspect --verify does"
    assert told in capsys.readouterr().out


def test_a_dataset_without_checksums_is_said_not_to_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_samples(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        del file.attrs["content_sha256"]
    checked(path)
    assert "x.h5: there are no checksums to compare the samples with" in capsys.readouterr().out


def test_a_run_that_ends_first_says_that_not_all_was_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5")) as dataset:
        DatasetCheck(dataset).close()
    told = "x.h5: not all samples were compared with their checksums (the run ended first); dynapi"
    assert told in capsys.readouterr().out


def test_a_dataset_that_cannot_be_read_any_more_is_for_training_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], errors: list[BaseException | None]
) -> None:
    path = write_samples(tmp_path / "x.h5")
    with DatasetFile(path) as dataset:
        path.unlink()
        wait_for(DatasetCheck(dataset))
    told = f"with their checksums ({path}: not a dataset: No such file or directory; make it"
    assert told in capsys.readouterr().out
    assert errors == []


def test_whoever_switches_it_off_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5")) as dataset:
        DatasetCheck(dataset, is_wanted=False).close()
    told = "x.h5: samples are not compared with their checksums (data.verify = false)"
    assert told in capsys.readouterr().out


def test_the_name_of_a_dataset_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DatasetFile(write_samples(tmp_path / "\x1b[2J.h5")) as dataset:
        DatasetCheck(dataset, is_wanted=False).close()
    assert r"\x1b[2J.h5: samples are not" in capsys.readouterr().out


def test_the_process_ends_when_the_run_is_killed() -> None:
    """It waits for a dataset here that never comes, so that nothing else ends it."""
    program = (
        "import threading, dynapipe_hpc.experiment.run.dataset_check as check\n"
        "check.verify_dataset = lambda _: threading.Event().wait()\n"
        "check.main([None])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(MAX_S) == 3
