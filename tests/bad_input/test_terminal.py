"""Names that would steer a terminal are shown as they would be written in Python."""

import json
from pathlib import Path

from tests.bad_input.good import PREPROCESS, TRAIN
from tests.bad_input.worker import Ended, Worker

NAME = "\x1b[2J\x07\u202etxt"
SHOWN = r"\x1b[2J\x07\u202etxt"


def assert_shown(ended: Ended) -> None:
    assert ended.exit_code == 0, ended.stderr
    assert SHOWN in ended.stdout
    for text in (ended.stdout, ended.stderr):
        assert text.replace("\n", "").isprintable(), text


def test_tasks_and_sources_are_escaped_by_inspect(worker: Worker, folder: Path) -> None:
    line = {"inputs": "a", "targets": "b", "task": f"{NAME}\nfaked line"}
    (folder / f"{NAME}.jsonl").write_text(json.dumps(line) + "\n")
    written = worker.call(folder, ("preprocess", f"{NAME}.jsonl", *PREPROCESS[2:]))
    assert written.exit_code == 0, written.stderr
    ended = worker.call(folder, ("inspect", "out.h5"))
    assert_shown(ended)
    assert rf"{SHOWN}\nfaked line" in ended.stdout
    assert f"sources    {SHOWN}.jsonl" in ended.stdout


def test_the_name_of_an_output_is_escaped(worker: Worker, folder: Path) -> None:
    assert_shown(worker.call(folder, ("preprocess", "in.jsonl", f"{NAME}.h5", "--workers", "1")))


def test_the_name_of_a_run_is_escaped_by_report(worker: Worker, folder: Path) -> None:
    (folder / "run").rename(folder / NAME)
    assert_shown(worker.call(folder, ("report", NAME, "-o", "out.html")))


def test_the_name_of_a_run_is_escaped_when_it_goes_on(worker: Worker, trained: Path) -> None:
    (trained / "trained").rename(trained / NAME)
    again = [NAME if word == "trained" else word for word in TRAIN]
    assert_shown(worker.call(trained, (*again, "--set", "training.iterations=4")))
