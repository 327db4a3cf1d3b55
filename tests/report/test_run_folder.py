import resource
from pathlib import Path

import pytest
from tests.examples.example_runs import example_plans, example_traces, record, write_run

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.report.run_folder import RunFolder


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    records = [record(0, loss=2.5), record(1, loss=1 / 3, waited_ms=1e-9)]
    folder = RunFolder.create(tmp_path / "runs" / "x", "a = 1\n", {"host": "n1", "cores": 4})
    for line in records:
        folder.add(line)
    found = RunFolder.open(tmp_path / "runs" / "x")
    assert list(found.records()) == records
    assert (found.name, found.config) == ("x", "a = 1\n")
    assert found.machine == {"host": "n1", "cores": 4}


UNFINISHED = f"{0xABC:016x}.partial"


def test_what_a_run_was_writing_when_it_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    begun = tmp_path / f".iterations.jsonl.{UNFINISHED}"
    begun.touch()
    RunFolder.create(tmp_path, "", {}).add(record())
    names = ("config.toml", "trace.json", "pairs.h5.abab.reference")
    others = [tmp_path / f".{name}.{UNFINISHED}" for name in names]
    plan = tmp_path / "plans" / f".0003.txt.{UNFINISHED}"
    plan.parent.mkdir()
    of_the_report = tmp_path / f".report.html.{UNFINISHED}"
    for path in (*others, plan, of_the_report):
        path.touch()
    RunFolder.resume(tmp_path, "", {}, 1)
    assert list(tmp_path.rglob("*.partial")) == [of_the_report]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(InputError, match="holds files that no run wrote; name a new folder"):
        RunFolder.create(tmp_path, "", {})
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_full_disk_is_a_run_error_that_names_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RunError, match=r"iterations.jsonl: cannot be written: File too large"):
            folder.add(record(1))
        with pytest.raises(RunError, match=r"(trace.json|txt): cannot be written: File too large"):
            folder.add_trace(example_plans(1), example_traces(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_run_that_got_not_far_can_be_begun_again(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 3, n_traced=3)
    with pytest.raises(InputError, match="already holds a run of 3 iterations"):
        RunFolder.create(tmp_path / "x", "", {}, n_repeatable=2)
    again = RunFolder.create(tmp_path / "x", "", {}, n_repeatable=3)
    assert list(again.records()) == []
    assert not (tmp_path / "x" / "trace.json").exists()


def test_plans_of_an_earlier_start_are_removed_with_its_iterations(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", 3, n_traced=3)
    (folder.path / "plans" / "notes.txt").write_text("by hand")
    RunFolder.resume(folder.path, "", {}, 2)
    names = sorted(path.name for path in (folder.path / "plans").iterdir())
    assert names == ["0000.txt", "0001.txt", "notes.txt"]
    RunFolder.create(folder.path, "", {}, n_repeatable=9)
    assert [path.name for path in (folder.path / "plans").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("n_done", [1, 2, 3])
def test_a_run_goes_on_behind_what_counts(tmp_path: Path, n_done: int) -> None:
    write_run(tmp_path / "whole", 3, n_traced=3)
    write_run(tmp_path / "x", 3, n_traced=3)
    RunFolder.resume(tmp_path / "x", "a = 2\n", {"host": "n2"}, n_done)
    found = RunFolder.open(tmp_path / "x")
    whole = RunFolder.open(tmp_path / "whole")
    assert list(found.records()) == list(whole.records())[:n_done]
    assert found.timelines() == whole.timelines()[:n_done]
    assert (found.config, found.machine) == ("a = 2\n", {"host": "n2"})
