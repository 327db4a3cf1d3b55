"""Names that would steer a terminal, and single processes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bad_input.changes import Change, be, cut
from tests.bad_input.good import PLAN_PROFILED, PREPROCESS, REPORT, TRAIN
from tests.bad_input.worker import COUNTS, Ended, Worker, assert_clear, environment, listing

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


MAIN = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main())"

CASES: list[tuple[Sequence[str], str, Change]] = [
    (PREPROCESS, "in.jsonl", be("nonsense\n")),
    (PLAN_PROFILED, "table.h5", lambda path: cut(path, 0.5)),
    (REPORT, "run/timelines.jsonl", be("7\n")),
]


def assert_refused(folder: Path, command: Sequence[str]) -> None:
    COUNTS["tried"] += 1
    before = listing(folder)
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, timeout=90, env=environment()
    )
    stdout, stderr = ended.stdout.decode(), ended.stderr.decode()
    # What mpiexec says of ranks that end with an error comes behind.
    message, _, _ = stderr.partition("-----")
    assert_clear(Ended(ended.returncode, stdout, message, grown_bytes=0))
    assert stderr.count("dynapipe-hpc: ") == 1, stderr
    assert listing(folder) == before
    COUNTS["clear"] += 1


@pytest.mark.parametrize(("arguments", "name", "change"), CASES)
def test_a_process_ends_with_one_message(
    folder: Path, arguments: Sequence[str], name: str, change: Change
) -> None:
    change(folder / name)
    assert_refused(folder, [sys.executable, "-c", MAIN, *arguments])
