"""Small datasets of preference pairs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.examples.tokenized import header

from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.token_block import TokenBlock


class TokenPair(NamedTuple):
    """Tokens of a prompt and of two answers, and the name of a task."""

    prompt: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]
    task: str = "a"


PAIRS = [
    TokenPair([1, 2, 3], [4, 9], [5, 6, 9]),
    TokenPair([], [7, 8, 9], [9], "b"),
    TokenPair([5], [6, 7, 8, 9], [1, 9]),
]


def write_pairs(
    path: Path, pairs: Sequence[TokenPair] = PAIRS, vocab_size: int = 10, *, has_start: bool = True
) -> Path:
    """Writes a dataset of pairs."""
    of_pairs = replace(header(vocab_size, has_start=has_start), has_pairs=True)
    with DatasetWriter.create(path, of_pairs) as writer:
        writer.append(
            TokenBlock.from_samples(
                [(pair.prompt, pair.chosen, pair.task) for pair in pairs],
                vocab_size,
                rejected=[pair.rejected for pair in pairs],
            )
        )
    return path
