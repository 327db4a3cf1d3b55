"""A small dataset, for whoever needs one; and its parts, to look at or to spoil."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.dataset_file import Dataset
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.dataset.long_samples import used_of
from dynapipe_hpc.data.dataset.sampler import EpochBatches, TokenBudgetSampler
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample
from dynapipe_hpc.data.trained_tokens import Span

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
        marked = zip(samples, spans or [()] * len(samples), strict=True)
        made = [TokenizedSample(*sample, marks) for sample, marks in marked]
        writer.append(TokenBlock.from_samples(made, vocab_size))
    return path


def sides_of(block: TokenBlock) -> list[list[list[int]]]:
    """Tokens of every sample: of its input, its target and, of a pair, its rejected answer."""
    sides = []
    for tokens, lengths in zip(block.tokens, block.lengths.T, strict=True):
        ends = pairwise([0, *lengths.cumsum().tolist()])
        sides.append([tokens[start:end].tolist() for start, end in ends])
    return [list(each) for each in zip(*sides, strict=True)]


def header_in(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        header: dict[str, Any] = json.loads(file["header"][()])
    return header


def with_header(path: Path, **changes: object) -> Path:
    """Another header, as it was written."""
    content = {**header_in(path), **changes}
    with h5py.File(path, "a") as file:
        del file["header"]
        file["header"] = np.bytes_(new := json.dumps(content).encode())
        file.attrs["header_crc"] = zlib.crc32(new)
    return path


def with_array(path: Path, name: str, values: Any) -> Path:
    """Other values of an array, of the type that it has."""
    with h5py.File(path, "a") as file:
        kind = file[name].dtype
        del file[name]
        file[name] = np.array(values, kind)
    return path


def sampler_of(dataset: Dataset, config: DataConfig) -> TokenBudgetSampler:
    """Of the samples of a dataset, epoch by epoch."""
    used = used_of(dataset, config)
    return TokenBudgetSampler(used, dataset.task_ids, EpochBatches(used, config))


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


def write_pairs(path: Path, pairs: Sequence[TokenPair] = PAIRS, vocab_size: int = 10) -> Path:
    of_pairs = replace(header(vocab_size), has_pairs=True)
    with DatasetWriter.create(path, of_pairs) as writer:
        samples = [
            TokenizedSample(pair.prompt, pair.chosen, pair.task, rejected=pair.rejected)
            for pair in pairs
        ]
        writer.append(TokenBlock.from_samples(samples, vocab_size, has_pairs=True))
    return path
