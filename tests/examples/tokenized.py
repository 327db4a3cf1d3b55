"""A small dataset, for whoever needs one."""

from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.spans import Span
from dynapipe_hpc.data.token_block import TokenBlock

Tokenized = tuple[Sequence[int], Sequence[int], str]

SAMPLES: list[Tokenized] = [
    ([1, 2, 3], [4, 9], "sum"),
    ([], [9], "copy"),
    ([5], [6, 7, 8, 9], "sum"),
]


def header(vocab_size: int = 10, *, has_start: bool = True) -> DatasetHeader:
    """Of a vocabulary whose last token ends a sequence."""
    sources, eos_id = ("a.jsonl", "b.jsonl"), vocab_size - 1
    start_id = eos_id if has_start else None
    return DatasetHeader("digits", "ab" * 32, vocab_size, eos_id, start_id, sources)


def write_samples(
    path: Path,
    samples: Sequence[Tokenized] = SAMPLES,
    vocab_size: int = 10,
    spans: Sequence[Sequence[Span]] = (),
    *,
    has_start: bool = True,
) -> Path:
    """Writes (input tokens, target tokens, task) triples, and spans of each, as a dataset."""
    with DatasetWriter.create(path, header(vocab_size, has_start=has_start)) as writer:
        writer.append(TokenBlock.from_samples(samples, vocab_size, spans))
    return path
