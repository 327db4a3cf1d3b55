"""Processes that tokenize."""

import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import pytest

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.text.open_lines import Lines, TextPart
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_pool import open_pool
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer, Marked

LINES = Lines(TextPart(Path("a.jsonl")), 1, [b'{"inputs": "a", "targets": "b"}\n'])


class DyingTokenizer(ByteTokenizer):
    """As when the system has run out of memory."""

    def encode_marked(self, *_: object, **__: object) -> list[Marked]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return str(ids)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_blocks_are_tokenized_in_their_order(n_workers: int) -> None:
    blocks = [Lines(LINES.part, 1, LINES.lines * n) for n in range(1, 12)]
    with open_pool(Recipe(ByteTokenizer()), n_workers) as pool:
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
    with open_pool(Recipe(ByteTokenizer()), n_workers=2) as pool:
        for _ in pool([LINES] * 3):
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held_before
    assert len(held) > 3
    assert all({signal.SIGINT, signal.SIGTERM} <= mask for mask in held)


def test_workers_that_cannot_be_started_are_reported() -> None:
    program = """
import tempfile
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_pool import open_pool
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer, Marked

tempfile.tempdir = "/missing"
with open_pool(Recipe(ByteTokenizer()), n_workers=2):
    pass
"""
    ended = run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
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
    called = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", called, "preprocess", str(source), str(output)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return run(
        [*command, "--workers", "2"], env=environment, capture_output=True, text=True, check=False
    )


def test_a_long_path_of_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES.lines[0])
    for name in ("x" * 110, "missing"):
        folder = tmp_path / name
        if name != "missing":
            folder.mkdir()
        ended = in_temporary_folder(folder, tmp_path / "in.jsonl", tmp_path / f"{name[:9]}.h5")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "1 samples" in ended.stdout
