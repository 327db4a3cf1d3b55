"""Processes that tokenize."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.tokenize_lines import Lines
from dynapipe_hpc.data.tokenize_pool import open_pool
from dynapipe_hpc.data.tokenizers import ByteTokenizer

LINES = Lines(Path("a.jsonl"), 1, [b'{"inputs": "a", "targets": "b"}\n'])


@dataclass(frozen=True)
class DyingTokenizer:
    """As when the system has run out of memory."""

    name: str = "dying"
    sha256: str = ""
    vocab_size: int = 2
    eos_id: int = 1

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        os.kill(os.getpid(), signal.SIGKILL)
        return [[0] for _ in texts]


def test_blocks_are_tokenized_side_by_side() -> None:
    with open_pool(ByteTokenizer(), skip_bad=False, n_workers=2) as pool:
        futures = [pool.submit(LINES) for _ in range(5)]
        assert [future.result(timeout=60).block.n_tokens for future in futures] == [3] * 5


def test_a_dead_worker_is_reported() -> None:
    with (
        pytest.raises(RunError, match=r"a worker process died.*try fewer: --workers N"),
        open_pool(DyingTokenizer(), skip_bad=False, n_workers=1) as pool,
    ):
        pool.submit(LINES).result(timeout=60)
