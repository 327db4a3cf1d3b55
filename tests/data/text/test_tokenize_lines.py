"""Lines become samples, in parts and by a pool of processes."""

import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import sides_of
from tests.jobs.command_line import run_command, run_python

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.text import open_lines
from dynapipe_hpc.data.text.open_lines import Lines, read_blocks
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import open_pool, tokenize_lines
from dynapipe_hpc.data.text.tokenizers import Marked, Tokenizer

GOOD = json.dumps({"inputs": "hi", "targets": "hé", "task": "greet"}, ensure_ascii=False).encode()


def lines(*content: bytes) -> Lines:
    return Lines(Path("in.jsonl"), 41, [line + b"\n" for line in content])


def test_inputs_end_where_the_tokenizer_says_so() -> None:
    block = tokenize_lines(lines(GOOD), Recipe(Tokenizer(input_end_id=255))).block
    assert sides_of(block) == [[[*b"hi", 255], [*"hé".encode(), 256]]]


def test_a_bad_line_is_named_and_left_out() -> None:
    bad = b'{"question": "a", "answer": "b"}'
    found = tokenize_lines(lines(GOOD, bad, GOOD), Recipe(Tokenizer()))
    assert len(found.block.tasks) == 2
    [bad_line] = found.bad
    told = bad_line.describe()
    assert told.startswith("in.jsonl:42: ")
    assert "(found 'question', 'answer'); name the fields of the input and the target: " in told
    assert found.n_bytes == 2 * len(GOOD) + len(bad) + 3


LINES = Lines(Path("a.jsonl"), 1, [b'{"inputs": "a", "targets": "b"}\n'])


class DyingTokenizer(Tokenizer):
    """As when the system has run out of memory."""

    def encode(self, *_: object, **__: object) -> Marked:
        os.kill(os.getpid(), signal.SIGKILL)
        return [], []

    def decode(self, ids: Sequence[int]) -> str:
        return str(ids)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_blocks_are_tokenized_in_their_order(n_workers: int) -> None:
    blocks = [Lines(LINES.path, 1, LINES.lines * n) for n in range(1, 12)]
    with open_pool(Recipe(Tokenizer()), n_workers) as pool:
        found = [len(tokenized.block.tasks) for tokenized in pool(blocks)]
    assert found == list(range(1, 12))


def test_no_signal_interrupts_the_start_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor may start one with every task; half a start is a worker without its data."""
    held: list[set[int]] = []
    submit = ProcessPoolExecutor.submit

    def observed(executor: ProcessPoolExecutor, *task: Any) -> Future[Any]:
        held.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        return submit(executor, *task)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", observed)
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with open_pool(Recipe(Tokenizer()), n_workers=2) as pool:
        for _ in pool([LINES] * 3):
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held_before
    assert len(held) > 3
    assert all({signal.SIGINT, signal.SIGTERM} <= mask for mask in held)


def test_workers_that_cannot_be_started_are_reported() -> None:
    program = """
import tempfile
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import open_pool
from dynapipe_hpc.data.text.tokenizers import Tokenizer, Marked

tempfile.tempdir = "/missing"
with open_pool(Recipe(Tokenizer()), n_workers=2):
    pass
"""
    ended = run_python(program)
    assert (
        "RunError: worker processes cannot be started: No such file or directory; set TMPDIR "
        in (ended.stderr)
    )


def test_a_dead_worker_is_reported() -> None:
    with (
        pytest.raises(RunError, match=r"a worker process died.*try fewer workers: --workers N"),
        open_pool(Recipe(DyingTokenizer()), n_workers=2) as pool,
    ):
        list(pool([LINES]))


def in_temporary_folder(folder: Path, source: Path, output: Path) -> CompletedProcess[str]:
    """Preprocessing with two workers where TMPDIR names a folder."""
    command = (sys.executable, "-m", "dynapipe_hpc", "preprocess", source, output)
    return run_command(*command, "--workers", "2", variables={"TMPDIR": str(folder)})


def test_a_long_path_of_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES.lines[0])
    for name in ("x" * 110, "missing"):
        folder = tmp_path / name
        if name != "missing":
            folder.mkdir()
        ended = in_temporary_folder(folder, tmp_path / "in.jsonl", tmp_path / f"{name[:9]}.h5")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "1 samples" in ended.stdout


@given(text=st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r"])).map(b"".join))
def test_every_line_is_in_one_block_and_keeps_its_number(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_lines, "BLOCK_BYTES", 4)
        blocks = list(read_blocks(path))
    found: list[bytes] = []
    for block in blocks:
        assert block.first == len(found) + 1
        found += block.lines
    assert found == io.BytesIO(text).readlines()


def test_what_a_killed_job_left_of_the_dataset_is_removed(tmp_path: Path) -> None:
    source, left = tmp_path / "a.jsonl", tmp_path / f".x.h5.{7:016x}.partial"
    source.write_bytes(LINES.lines[0])
    left.touch()
    os.utime(left, (0, 0))
    preprocess([source], tmp_path / "x.h5", Recipe(Tokenizer()), PreprocessOptions(n_workers=1))
    assert set(tmp_path.iterdir()) == {source, tmp_path / "x.h5"}
