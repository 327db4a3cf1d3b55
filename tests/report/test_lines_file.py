"""Files of JSON lines: ascending, complete, and JSON that every program reads."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.example_runs import example_plans, example_traces, record

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.lines_file import JsonLines, LinesFile
from dynapipe_hpc.report.records import EvaluationRecord, IterationRecord, TaskLoss
from dynapipe_hpc.report.run_folder import (
    RunFolder,
    evaluations_file,
    iterations_file,
    timelines_file,
)
from dynapipe_hpc.report.timeline import IterationTimeline, timeline_of
from dynapipe_hpc.report.work_shares import PassShares, WorkShares


def evaluation(n_done: int, loss: float = 2.0) -> EvaluationRecord:
    tasks = {'a, "b"': TaskLoss(1.0, 30), "ü\n": TaskLoss(3.0, 10)}
    return EvaluationRecord(n_done, loss, 12.5, tasks)


def timeline(iteration: int) -> IterationTimeline:
    shares = PassShares(WorkShares(0.9, 0.1, 0.0, 0.0), WorkShares(0.6, 0.1, 0.0, 0.3))
    return timeline_of(example_plans(iteration), example_traces(iteration), [[shares]] * 2)


ITERATION = JsonLines(IterationRecord).line(record(3)).strip()
EVALUATION = JsonLines(EvaluationRecord).line(evaluation(3)).strip()
TIMELINE = JsonLines(IterationTimeline).line(timeline(3)).strip()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    files: list[tuple[LinesFile[Any], Callable[[int], Any]]] = [
        (iterations_file(tmp_path), record),
        (evaluations_file(tmp_path), evaluation),
        (timelines_file(tmp_path), timeline),
    ]
    for file, make in files:
        assert list(file.records()) == []
        for k in (0, 2, 5):
            file.add(make(k))
        with file.path.open("a") as open_file:
            open_file.write('{"n_done": 30')  # its writer was killed
        assert list(file.records()) == [make(0), make(2), make(5)]
        file.cut(3)
        assert list(file.records()) == [make(0), make(2)]


@given(loss=st.floats(allow_nan=False, allow_infinity=False), planning_ms=st.floats(0, 1e9))
def test_no_digit_of_a_number_is_lost(
    tmp_path_factory: pytest.TempPathFactory, loss: float, planning_ms: float
) -> None:
    file = iterations_file(tmp_path_factory.mktemp("run"))
    file.add(record(loss=loss, planning_ms=planning_ms))
    assert list(file.records()) == [record(loss=loss, planning_ms=planning_ms)]


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
        folder.add_evaluation(evaluation(k))
    with (tmp_path / "iterations.jsonl").open("a") as file:
        file.write('{"time": "2026')  # killed while it wrote
    resumed = RunFolder.resume(tmp_path, "", {}, n_done=3)
    resumed.add(record(3))
    assert [each.iteration for each in resumed.records()] == [0, 1, 2, 3]
    # The evaluation of the checkpoint stays.
    assert [each.n_done for each in resumed.evaluations()] == [0, 1, 2, 3]


DAMAGED = [
    *(("iterations", line, "") for line in ("", "[]", "{}", "{", "[" * 100_000, ITERATION[:40])),
    ("iterations", ITERATION.replace('"loss":4.0', '"loss":"four"'), "loss is 'four': Input"),
    ("iterations", ITERATION.replace(":1250,", ":1250.5,"), "padded_tokens is 1250.5: Input"),
    ("iterations", ITERATION.replace(":500.0,", ":0.0,"), "measured_ms is 0.0: Input"),
    ("iterations", ITERATION.replace('"measured_ms":500.0,', ""), ".*Field required"),
    ("evaluations", EVALUATION.replace('"tokens":30', '"tokens":0'), "tasks"),
    ("evaluations", EVALUATION.replace('"n_done":3', '"n_done":"3"'), "n_done is '3'"),
    ("evaluations", EVALUATION.replace('"loss":1.0', '"loss":"1"'), "tasks"),
    ("evaluations", '{"n_done":3,"loss":1.0,"took_ms":1.0,"tasks":{}}', "tasks"),
    *(
        ("timelines", TIMELINE.replace('"start_ms":0.0', f'"start_ms":{wrong}'), "")
        for wrong in ('"x"', "NaN", "1e999", "9" * 400, "true")
    ),
    *(
        ("timelines", TIMELINE.replace('"iteration":3', f'"iteration":{wrong}'), "")
        for wrong in ('"x"', "0.5", "true", "-1")
    ),
    ("timelines", TIMELINE.replace('"kind":"forward"', '"kind":"nap"'), "planned.0.kind"),
    ("timelines", TIMELINE.replace('"microbatch":0', '"microbatch":"x"'), "planned.0.microbatch"),
    ("timelines", TIMELINE.replace("[3,16]", "[3]"), "planned.0.shape"),
    ("timelines", TIMELINE.replace("[0.9,0.1,", "[0.9,-0.1,"), ""),
    ("timelines", TIMELINE.replace("[0.9,0.1,", "[0.9,1.5,"), ""),
    ("timelines", TIMELINE.replace('"label":"F0"', '"label":7'), ""),
]


@pytest.mark.parametrize(("kind", "line", "told"), DAMAGED)
def test_a_damaged_line_is_named(tmp_path: Path, kind: str, line: str, told: str) -> None:
    assert line not in (ITERATION, EVALUATION, TIMELINE)
    folder = RunFolder.create(tmp_path, "", {})
    folder.add(record(0))
    folder.add_evaluation(evaluation(0))
    folder.add_trace(example_plans(0), example_traces(0))
    with (tmp_path / f"{kind}.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=rf"{kind}.jsonl:2: {told}.*; remove the line"):
        RunFolder.resume(tmp_path, "", {}, n_done=5)


def test_lines_of_two_runs_are_not_counted_as_one(tmp_path: Path) -> None:
    for k in (2, 1, 2):
        iterations_file(tmp_path).add(record(k))
    with pytest.raises(InputError, match=r":2: iteration 1 comes after 2: two runs wrote into"):
        list(iterations_file(tmp_path).records())
    for _ in range(2):
        evaluations_file(tmp_path).add(evaluation(10))
    with pytest.raises(InputError, match=r":2: n_done 10 comes after 10: two runs .*; keep"):
        list(evaluations_file(tmp_path).records())


def test_the_last_records_are_those_that_fit(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    assert file.last(9, 1000) == []
    for k in range(9):
        file.add(record(k))
    n_bytes = len(file.path.read_bytes().splitlines()[-1]) + 1
    assert file.last(9, 2 * n_bytes + 1) == [record(7), record(8)]
    assert file.last(1, 1000) == [record(8)]
    assert file.n_lines() == 9


def test_perplexity_is_of_all_tokens() -> None:
    assert evaluation(0).tokens == 40
    assert evaluation(0).perplexity == pytest.approx(math.exp(1.5))
    assert EvaluationRecord(0, 1.0, 1.0, {"x": TaskLoss(1e6, 1)}).perplexity == math.inf
