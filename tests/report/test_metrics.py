"""Lines of metrics.jsonl, the lines that people read, and how the file continues."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.examples.example_runs import record

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.amounts import duration, short
from dynapipe_hpc.report.metrics import Metrics
from dynapipe_hpc.report.run_folder import RunFolder

TIME = "2026-05-04T03:02:01.000+02:00"


def metrics(iteration: int = 0, **changes: Any) -> Metrics:
    return Metrics(record(iteration, **changes), TIME, 40, 1000 * (iteration + 1), 0.25, 19.5)


def test_a_line_has_every_number_in_its_unit() -> None:
    assert json.loads(metrics(2).line()) == {
        "time": TIME,
        "iteration": 2,
        "iterations": 40,
        "tokens": 3000,
        "loss": 4.0,
        "learning_rate": 1e-3,
        "gradient_norm": 1.5,
        "seconds": 0.5,
        "tokens_per_s": 2000.0,
        "padding_efficiency": 0.8,
        "bubble_share": 0.25,
        "predicted_seconds": 0.45,
        "plans_ahead": 2,
        "peak_bytes": 4194304,
        "seconds_left": 19.5,
    }


def test_numbers_that_json_does_not_know_are_null() -> None:
    line = metrics(loss=math.nan, gradient_norm=-math.inf).line()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["loss"], found["gradient_norm"]) == (None, None)


def test_a_line_for_people() -> None:
    assert metrics(2).text() == (
        "iteration 2: of 40, 20s left, loss 4.0000, lr 1.0e-3, norm 1.5, bubble 25%, 3.00k tok, "
        "2.00k/s"
    )
    assert "bubble -, " in replace(metrics(), bubble_share=math.nan).text()


def test_a_line_of_a_large_run_fits_into_100_columns() -> None:
    large = record(9998, loss=3.4567, learning_rate=1.2e-5, real_tokens=456_700, measured_ms=1e3)
    line = Metrics(large, TIME, 10_000, 12_345_678_901, 0.123, 3 * 3600 + 120).text()
    assert line == (
        "iteration 9998: of 10000, 3h02 left, loss 3.4567, lr 1.2e-5, norm 1.5, bubble 12%, "
        "12.3B tok, 457k/s"
    )
    assert len(line) <= 100


def test_what_asks_for_attention_has_a_line_of_its_own() -> None:
    outlier: dict[str, Any] = {"outlier_sample": 2, "outlier_tokens": 1600, "outlier_ms": 180.0}
    _, second, third = metrics(gradient_norm=math.inf, **outlier).text().splitlines()
    assert second == "  sample 2 (1,600 tokens) adds 180 ms"
    assert third == "  update skipped: a gradient is not finite"


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, "0"),
        (0.567, "0.57"),
        (7, "7"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (12_345, "12.3k"),
        (99_960, "100k"),
        (9_996, "10.0k"),
        (4_560_000, "4.56M"),
        (3e16, "30000T"),
    ],
)
def test_amounts_have_three_digits(amount: float, expected: str) -> None:
    assert short(amount) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00"),
        (187, "3m07"),
        (3599.6, "1h00"),
        (5 * 3600 + 9 * 60 + 59, "5h09"),
        (48 * 3600, "2d00"),
        (12 * 86400 + 4 * 3600, "12d04"),
    ],
)
def test_durations_have_two_units(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def iterations(path: Path) -> list[int]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def test_a_resumed_run_continues_the_file_without_repeating_an_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "", {})
    for k in range(5):
        folder.add(record(k))
        folder.add_metrics(metrics(k))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"time": "2026')  # killed while it wrote
    RunFolder.check_resumable(tmp_path)
    resumed = RunFolder.resume(tmp_path, "", {}, n_done=3)
    resumed.add_metrics(metrics(3))
    assert iterations(tmp_path) == [0, 1, 2, 3]


def test_a_new_run_in_the_folder_of_a_short_one_begins_the_file_again(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "", {}).add_metrics(metrics(0))
    RunFolder.create(tmp_path, "", {})
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("line", ["{", "[]", '{"iteration": "3"}', '{"iteration": 0}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    folder = RunFolder.create(tmp_path, "", {})
    folder.add_metrics(metrics(0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:2: .*(remove|keep)"):
        RunFolder.check_resumable(tmp_path)
