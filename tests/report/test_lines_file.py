"""Files of JSON lines: ascending, complete, and JSON that every program reads."""

import json
import math
from pathlib import Path

import pytest
from tests.examples.example_runs import record

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss
from dynapipe_hpc.report.run_folder import RunFolder, iterations_file


def iterations(path: Path) -> list[int]:
    lines = (path / "iterations.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def test_a_line_has_every_number_by_its_name(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    file.add(record(2, outlier_sample=5))
    line = json.loads(file.path.read_text())
    assert line["iteration"] == 2
    assert (line["tokens"], line["measured_ms"], line["longest_trip_ms"]) == (3000, 500.0, 90.0)
    assert (line["outlier_sample"], line["outlier_tokens"]) == (5, 0)
    assert line["time"].startswith("2026-05-04T")


def test_numbers_that_json_does_not_know_are_null(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    file.add(record(loss=math.nan, gradient_norm=-math.inf))
    line = json.loads(file.path.read_text(), parse_constant=pytest.fail)
    assert (line["loss"], line["gradient_norm"]) == (None, None)
    (again,) = file.records()
    assert math.isnan(again.loss)
    assert math.isnan(again.gradient_norm)


def test_a_resumed_run_continues_the_file_without_repeating_an_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "", {})
    for k in range(5):
        folder.add(record(k))
    with (tmp_path / "iterations.jsonl").open("a") as file:
        file.write('{"time": "2026')  # killed while it wrote
    RunFolder.check_resumable(tmp_path)
    resumed = RunFolder.resume(tmp_path, "", {}, n_done=3)
    resumed.add(record(3))
    assert iterations(tmp_path) == [0, 1, 2, 3]


def test_the_evaluation_of_the_checkpoint_stays_when_a_run_is_resumed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "", {})
    for n_done in (0, 3, 4):
        folder.add_evaluation(EvaluationRecord(n_done, 1.0, 1.0, {"x": TaskLoss(1.0, 5)}))
    resumed = RunFolder.resume(tmp_path, "", {}, n_done=3)
    assert [each.n_done for each in resumed.evaluations()] == [0, 3]


@pytest.mark.parametrize("line", ["{", "[]", '{"iteration": "3"}', '{"iteration": 0}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    RunFolder.create(tmp_path, "", {}).add(record(0))
    with (tmp_path / "iterations.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"iterations.jsonl:2: .*(remove|keep)"):
        RunFolder.check_resumable(tmp_path)


def test_the_last_records_are_those_that_fit(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    assert file.last(9, 1000) == []
    for k in range(9):
        file.add(record(k))
    n_bytes = len(file.path.read_bytes().splitlines()[-1]) + 1
    assert file.last(9, 2 * n_bytes + 1) == [record(7), record(8)]
    assert file.last(1, 1000) == [record(8)]
    assert file.n_lines() == 9
