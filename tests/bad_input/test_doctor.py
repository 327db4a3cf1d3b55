import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.bad_input.changes import be
from tests.bad_input.good import GO_ON
from tests.bad_input.oracle import assert_refused, listing
from tests.bad_input.test_forged_checkpoints import ONLY, forge_part, overlap, rewrite
from tests.bad_input.worker import Ended, Worker, environment
from tests.examples.example_runs import write_run
from tests.examples.tokenized import write_samples

RUN = Path("trained")


def doctor(run: Sequence[str]) -> tuple[str, ...]:
    """The command that asks whether a run would start."""
    return ("doctor", *run[1:])


def problems(ended: Ended) -> list[str]:
    return [line for line in ended.stdout.splitlines() if "PROBLEM: " in line]


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


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other files": (other_files, "trained holds files that no run wrote; name a new folder"),
    "no checkpoint": (too_long_to_repeat, "trained already holds a run of 3 iterations without"),
    "another dataset": (another_dataset, "was written with the hash of the samples of data.dat"),
    "numbers that changed": (
        lambda folder: be(b"\0")(folder / ONLY / "part-00000.bin"),
        r"all checkpoints are damaged \(1\), for example .*part-00000.bin: is damaged: holds 1 of",
    ),
    "blocks that overlap": (
        lambda folder: forge_part(folder / ONLY, overlap),
        r"all checkpoints are damaged \(1\), for example .*blocks of weight/.* overlap",
    ),
    "a newer version": (
        lambda folder: rewrite(
            folder / ONLY / "checkpoint.json", lambda f: f.update(schema_version=2)
        ),
        "of version 2, but this program reads 'dynapipe-hpc checkpoint' of version 1",
    ),
    "no folder of checkpoints": (
        no_folder,
        "trained/checkpoints: cannot be read: Not a directory; make it",
    ),
    "no folder of a lock": (
        lambda folder: (folder / RUN / ".lock").touch(),
        "trained/.lock: has the name of the lock but is no folder; remove it",
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
def test_what_a_run_refuses_of_its_folder_the_doctor_finds(
    worker: Worker, trained: Path, name: str
) -> None:
    change, words = CASES[name]
    change(trained)
    assert_refused(worker, trained, GO_ON, words)
    assert_found(worker, trained, GO_ON, words)


def assert_found(worker: Worker, folder: Path, run: Sequence[str], words: str) -> None:
    before = listing(folder)
    ended = worker.call(folder, doctor(run))
    assert ended.exit_code == 2
    assert [line for line in problems(ended) if re.search(words, line)], ended.stdout
    assert listing(folder) == before


def test_a_run_that_can_continue_has_a_line_and_no_problem(worker: Worker, trained: Path) -> None:
    checkpoints = trained / RUN / "checkpoints"
    newest = Path(shutil.copytree(checkpoints / "000003", checkpoints / "000004"))
    (newest / "part-00000.bin").write_bytes(b"")
    (checkpoints / ".000005.partial").mkdir()
    before = listing(trained)
    ended = worker.call(trained, doctor(GO_ON))
    assert problems(ended) == []
    assert "trained: continues after 3 iterations" in ended.stdout
    assert "warning: trained/checkpoints/000004/part-00000.bin: is damaged" in ended.stdout
    assert listing(trained) == before


def test_only_a_folder_that_is_named_is_that_of_a_run(worker: Worker, trained: Path) -> None:
    (trained / "runs").mkdir()
    (trained / RUN).rename(trained / "runs" / "trained")
    named = (*(word for word in GO_ON if word not in ("-o", "trained")), "-o", "runs")
    assert_found(worker, trained, named, "runs holds files that no run wrote")
    ended = worker.call(trained, doctor(named[:-2]))
    assert problems(ended) == []


def test_a_run_folder_is_looked_at_without_torch(trained: Path) -> None:
    (trained / "torch.py").write_text("raise OSError('libtorch.so: damaged')")
    ended = subprocess.run(
        [Path(sys.prefix) / "bin" / "dynapipe-hpc", *doctor(GO_ON)],
        cwd=trained,
        env={**environment(), "PYTHONPATH": os.fspath(trained)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "torch cannot be loaded (OSError: libtorch.so: damaged)" in ended.stdout
    assert "trained: continues after 3 iterations" in ended.stdout, ended.stderr
