"""Files and folders with permissions that do not allow what is asked for."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.bad_input.good import (
    GO_ON,
    INSPECT_TABLE,
    PLAN,
    PLAN_CSV,
    PLAN_LENGTHS,
    PLAN_PROFILED,
    PREPROCESS,
    REPORT,
    WITH_TOKENIZER,
)
from tests.bad_input.worker import Worker, assert_refused

IS_ROOT = os.geteuid() == 0
pytestmark = pytest.mark.skipif(IS_ROOT and not shutil.which("setpriv"), reason="needs setpriv")

# Root may do anything, unless it gives that away.
AS_OTHERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.fixture(scope="module")
def other() -> Iterator[Worker]:
    """One who may not do everything."""
    running = Worker(AS_OTHERS if IS_ROOT else [])
    yield running
    running.close()


@contextmanager
def permissions(path: Path, mode: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    yield
    path.chmod(before)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (PREPROCESS, "in.jsonl"),
        (WITH_TOKENIZER, "tokenizer.json"),
        (PLAN, "config.toml"),
        (PLAN, "data.h5"),
        (PLAN_PROFILED, "table.h5"),
        (INSPECT_TABLE, "table.h5"),
        (PLAN_CSV, "p.csv"),
        (PLAN_CSV, "p_parameters.csv"),
        (REPORT, "run/config.toml"),
        (REPORT, "run/iterations.jsonl"),
        (REPORT, "run/timelines.jsonl"),
    ],
)
def test_a_file_that_may_not_be_read_is_named(
    other: Worker, folder: Path, arguments: Sequence[str], name: str
) -> None:
    words = f"{Path(name).name}.*(may not be read|Permission denied)"
    closed = permissions(folder / name, 0)
    assert_refused(other, folder, arguments, words, while_it_runs=closed)


CHECKPOINT = "trained/checkpoints/000003"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{CHECKPOINT}/part-00000.bin", "part-00000.bin: cannot be read: may not be read"),
        (f"{CHECKPOINT}/part-00000.json", "part-00000.json: cannot be read: may not be read"),
        (f"{CHECKPOINT}/checkpoint.json", "checkpoint.json: cannot be read: may not be read"),
        (CHECKPOINT, "checkpoint.json: cannot be read: Permission denied"),
        ("trained/checkpoints", "checkpoints: cannot be read: Permission denied; make it"),
    ],
)
def test_a_checkpoint_that_may_not_be_read_is_not_taken_for_damaged(
    other: Worker, trained: Path, name: str, words: str
) -> None:
    closed = permissions(trained / name, 0)
    assert_refused(other, trained, GO_ON, words, while_it_runs=closed)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(PREPROCESS, "out.h5"), (PLAN_LENGTHS, "out.json"), (REPORT, "out.html")],
)
def test_a_folder_that_may_not_be_written_to_is_named(
    other: Worker, folder: Path, arguments: Sequence[str], name: str
) -> None:
    words, closed = f"{name}: its folder '.' is not writable", permissions(folder, 0o555)
    assert_refused(other, folder, arguments, words, while_it_runs=closed)
