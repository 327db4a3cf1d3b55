"""A small dataset, for whoever needs one."""

from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.token_block import TokenBlock

Tokenized = tuple[Sequence[int], Sequence[int], str]

SAMPLES: list[Tokenized] = [
    ([1, 2, 3], [4, 9], "sum"),
    ([], [9], "copy"),
    ([5], [6, 7, 8, 9], "sum"),
]


def header(vocab_size: int = 10) -> DatasetHeader:
    """Of a vocabulary whose last token ends a sequence."""
    return DatasetHeader("digits", "ab" * 32, vocab_size, vocab_size - 1, ("a.jsonl", "b.jsonl"))


def write_samples(path: Path, samples: Sequence[Tokenized] = SAMPLES, vocab_size: int = 10) -> Path:
    """Writes (input tokens, target tokens, task) triples as a dataset."""
    with DatasetWriter.create(path, header(vocab_size)) as writer:
        writer.append(TokenBlock.of(samples, vocab_size))
    return path
