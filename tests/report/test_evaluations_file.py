"""evaluations.jsonl: written line by line, read with care."""

import math
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.lines_file import JsonLines
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss
from dynapipe_hpc.report.run_folder import evaluations_file


def record(n_done: int, loss: float = 2.0) -> EvaluationRecord:
    tasks = {'a, "b"': TaskLoss(1.0, 30), "ü\n": TaskLoss(3.0, 10)}
    return EvaluationRecord(n_done, loss, 12.5, tasks)


LINE = JsonLines(EvaluationRecord).line(record(3)).strip()


def test_perplexity_is_of_all_tokens() -> None:
    assert record(0).tokens == 40
    assert record(0).perplexity == pytest.approx(math.exp(1.5))
    assert EvaluationRecord(0, 1.0, 1.0, {"x": TaskLoss(1e6, 1)}).perplexity == math.inf


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = evaluations_file(tmp_path)
    assert list(file.records()) == []
    for n_done in (0, 10, 20):
        file.add(record(n_done, loss=2.0 / 3))
    with file.path.open("a") as open_file:
        open_file.write('{"n_done": 30')  # its writer was killed
    assert list(file.records()) == [record(n, 2.0 / 3) for n in (0, 10, 20)]
    file.cut(11)
    assert list(file.records()) == [record(n, 2.0 / 3) for n in (0, 10)]


def test_a_loss_that_is_no_number_is_read(tmp_path: Path) -> None:
    file = evaluations_file(tmp_path)
    file.add(record(3, math.nan))
    assert math.isnan(next(file.records()).loss)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        LINE.replace('"tokens":30', '"tokens":0'),
        LINE.replace('"n_done":3', '"n_done":"3"'),
        LINE.replace('"loss":1.0', '"loss":"1"'),
        LINE.partition("{")[0] + '{"n_done":3,"loss":1.0,"took_ms":1.0,"tasks":{}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = evaluations_file(tmp_path)
    file.add(record(0))
    with file.path.open("a") as open_file:
        open_file.write(line + "\n")
    with pytest.raises(InputError, match=r"evaluations.jsonl:2: .*; remove the line"):
        list(file.records())


def test_a_repeated_evaluation_is_refused(tmp_path: Path) -> None:
    file = evaluations_file(tmp_path)
    file.add(record(10))
    file.add(record(10))
    with pytest.raises(InputError, match=":2: n_done 10 comes after 10: two runs"):
        list(file.records())
