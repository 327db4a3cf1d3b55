"""Run folders to report on, damaged or none."""

from pathlib import Path

import pytest
from tests.bad_input.changes import NO_FILES, Change, be, be_huge
from tests.bad_input.good import REPORT
from tests.bad_input.oracle import assert_refused
from tests.bad_input.worker import Worker


def replaced(old: str, new: str) -> Change:
    """Other text in place of the first of its kind."""
    return lambda path: path.write_text(path.read_text().replace(old, new, 1))


CHANGES: list[tuple[str, Change, str]] = [
    *(
        (f"run/{name}", change, "run")
        for name in ("config.toml", "machine.json", "iterations.jsonl")
        for change, _ in NO_FILES.values()
    ),
    *(("run/timelines.jsonl", change, "run") for change, _ in list(NO_FILES.values())[1:]),
    ("run/config.toml", be("x ="), "config.toml: not TOML"),
    ("run/config.toml", be(b"\xff"), "config.toml: not (TOML|UTF-8)"),
    ("run/config.toml", be("x = " + "[" * 50_000), "config.toml: not TOML"),
    ("run/machine.json", be(""), "machine.json: not JSON"),
    ("run/machine.json", be("[" * 50_000), "machine.json: not JSON"),
    ("run/machine.json", be("[1]"), "machine.json: must hold a JSON object"),
    ("run/machine.json", be_huge, "machine.json: is larger than"),
    ("run/iterations.jsonl", be(""), "run holds no finished iteration"),
    ("run/iterations.jsonl", be("a,b\n1,2\n"), "iterations.jsonl:1: 'a,b"),
    ("run/iterations.jsonl", be(b"\xff\xfe\n"), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", be_huge, r"iterations.jsonl:\d+: "),
    ("run/iterations.jsonl", be("[" * 50_000 + "\n"), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", replaced("4.0", '"four"'), "jsonl:1: loss is 'four'"),
    ("run/iterations.jsonl", replaced("4.0", '"\x1b[2J"'), r"iterations.jsonl:1: "),
    ("run/iterations.jsonl", replaced('"loss":4.0,', ""), "jsonl:1: loss is .*required"),
    ("run/iterations.jsonl", replaced("1000,", "-1000,"), "jsonl:1: real_tokens is -1000"),
    ("run/iterations.jsonl", replaced("500.0", "null"), "jsonl:1: measured_ms is None"),
    ("run/iterations.jsonl", replaced("500.0", "1e999"), "jsonl:1: measured_ms is inf"),
    ("run/iterations.jsonl", replaced("450.0", "0.0"), "jsonl:1: predicted_ms is 0"),
    ("run/iterations.jsonl", replaced("1000,", "9" * 5000 + ","), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", replaced("1000,", "9" * 400 + ","), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", replaced(":0,", ":-1,"), "jsonl:1: iteration is -1"),
    ("run/iterations.jsonl", replaced('on":1,', 'on":0,'), "jsonl:2: iteration 0 comes after 0"),
    ("run/iterations.jsonl", replaced("{", "x" * 200_000), "iterations.jsonl:1: "),
    ("run/timelines.jsonl", be("nonsense\n"), "timelines.jsonl:1: "),
    ("run/timelines.jsonl", be("[" * 50_000 + "\n"), "timelines.jsonl:1: "),
    ("run/timelines.jsonl", replaced('"planned_ms":65.0', '"planned_ms":1e999'), "is inf"),
]


@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_a_damaged_run_is_named(
    worker: Worker, folder: Path, name: str, change: Change, words: str
) -> None:
    change(folder / name)
    assert_refused(worker, folder, REPORT, words)


@pytest.mark.parametrize("page", ["in.jsonl", "run/config.toml", "data.h5", "other.html"])
def test_a_file_of_another_kind_is_never_replaced(worker: Worker, folder: Path, page: str) -> None:
    (folder / "other.html").write_text("<!doctype html>\n<title>holidays</title>\n")
    words = f"{page}: exists and is not a page of dynapipe-hpc report, so it is not overwritten"
    assert_refused(worker, folder, ("report", "run", "-o", page), words)
