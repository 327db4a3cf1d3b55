"""Run folders to report on or to go on with, damaged or none."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bad_input.changes import NO_FILES, Change, be, be_huge
from tests.bad_input.good import GO_ON, REPORT
from tests.bad_input.worker import Worker, assert_refused
from tests.examples.example_runs import write_run
from tests.examples.tokenized import write_samples


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
    ("run/config.toml", be("x = " + "[" * 50_000), "config.toml: not TOML"),
    ("run/machine.json", be(""), "machine.json: not JSON"),
    ("run/machine.json", be_huge, "machine.json: is larger than"),
    ("run/iterations.jsonl", be(""), "run holds no finished iteration"),
    ("run/iterations.jsonl", be("a,b\n1,2\n"), "iterations.jsonl:1: 'a,b"),
    ("run/iterations.jsonl", be(b"\xff\xfe\n"), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", be_huge, r"iterations.jsonl:\d+: "),
    ("run/iterations.jsonl", be("[" * 50_000 + "\n"), "iterations.jsonl:1: "),
    ("run/iterations.jsonl", replaced("4.0", '"four"'), "jsonl:1: loss is 'four'"),
    ("run/iterations.jsonl", replaced('"loss":4.0,', ""), "jsonl:1: loss is .*required"),
    ("run/iterations.jsonl", replaced("1000,", "-1000,"), "jsonl:1: real_tokens is -1000"),
    ("run/iterations.jsonl", replaced("500.0", "null"), "jsonl:1: measured_ms is None"),
    ("run/iterations.jsonl", replaced(":0,", ":-1,"), "jsonl:1: iteration is -1"),
    ("run/iterations.jsonl", replaced('on":1,', 'on":0,'), "jsonl:2: iteration 0 comes after 0"),
    ("run/timelines.jsonl", be("nonsense\n"), "timelines.jsonl:1: "),
    ("run/timelines.jsonl", replaced('"planned_ms":65.0', '"planned_ms":1e999'), "is inf"),
]


@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_a_damaged_run_is_named(
    worker: Worker, folder: Path, name: str, change: Change, words: str
) -> None:
    change(folder / name)
    assert_refused(worker, folder, REPORT, words)


RUN = Path("trained")
ONLY = RUN / "checkpoints" / "000003"


def other_files(folder: Path) -> None:
    shutil.rmtree(folder / RUN)
    (folder / RUN).mkdir()
    (folder / RUN / "letter.txt").write_text("Dear")


def too_long_to_repeat(folder: Path) -> None:
    shutil.rmtree(folder / RUN)
    write_run(folder / RUN, 3)


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder / RUN / "checkpoints")
    (folder / RUN / "checkpoints").touch()


def another_dataset(folder: Path) -> None:
    write_samples(folder / "data.h5", [([1] * 20, [49], "long")] * 40, vocab_size=50)


Fields = dict[str, Any]


def signed(fields: Fields) -> Fields:
    """With its checksum, as docs/formats.md says."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return {**fields, "checksum": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}


def rewrite(path: Path, change: Callable[[Fields], object]) -> None:
    fields = json.loads(path.read_text())
    del fields["checksum"]
    change(fields)
    path.write_text(json.dumps(signed(fields)))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other files": (other_files, "trained holds files that no run wrote; name a new folder"),
    "no checkpoint": (too_long_to_repeat, "trained already holds a run of 3 iterations without"),
    "another dataset": (another_dataset, "was written with the hash of the samples of data.dat"),
    "numbers that changed": (
        lambda folder: be(b"\0")(folder / ONLY / "part-00000.bin"),
        r"all checkpoints are damaged \(1\), for example .*part-00000.bin: is damaged: holds 1 of",
    ),
    "a newer version": (
        lambda folder: rewrite(
            folder / ONLY / "checkpoint.json", lambda f: f.update(schema_version=3)
        ),
        "of version 3, but this program reads 'dynapipe-hpc checkpoint' of version 2",
    ),
    "no folder of checkpoints": (
        no_folder,
        "trained/checkpoints: cannot be read: Not a directory; make it",
    ),
    "no folder of a lock": (
        lambda folder: (folder / RUN / ".lock").touch(),
        "trained: cannot be written: Not a directory; choose another folder",
    ),
    "damaged iterations": (
        lambda folder: be("x,y\n")(folder / RUN / "iterations.jsonl"),
        "iterations.jsonl:1: 'x,y",
    ),
    "a damaged trace": (
        lambda folder: be("1\n")(folder / RUN / "timelines.jsonl"),
        "timelines.jsonl:1: ",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_refuses_what_is_wrong_in_its_folder(
    worker: Worker, trained: Path, name: str
) -> None:
    change, words = CASES[name]
    change(trained)
    assert_refused(worker, trained, GO_ON, words)


def forget_the_choice(fields: Fields) -> None:
    """As checkpoints were before there was a choice."""
    fields["facts"].pop("data.long_samples", None)


@pytest.mark.parametrize("choice", ["cut_input_start", "drop", "refuse"])
def test_what_no_sample_is_too_long_for_may_change(
    worker: Worker, trained: Path, choice: str
) -> None:
    rewrite(trained / ONLY / "checkpoint.json", forget_the_choice)
    ended = worker.call(trained, (*GO_ON, "--set", f"data.long_samples={choice}"))
    assert ended.exit_code == 0, ended.stderr
    assert "trained: continues after 3 iterations" in ended.stdout
