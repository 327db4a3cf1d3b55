"""Writer of datasets, and of the index that joins shards. `docs/formats.md` describes the file."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.content_hash import ContentHash
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_header import (
    DatasetHeader,
    fixed_length,
    write_content_hash,
    write_header,
    write_turn_end_ids,
)
from dynapipe_hpc.data.dataset.shard_reader import GROUPS, REJECTED
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Spans
from dynapipe_hpc.data.token_block import TokenBlock, TokenSequences, token_type

Arrays = list[npt.NDArray[np.integer]]


def write_index(output: Path, header: DatasetHeader, shards: Sequence[Path]) -> None:
    """Writes an index of the samples of all shards, in order; the shards stay where they are.

    Args:
        output: Path of the index, which appears when it is complete.
        header: Header of the dataset.
        shards: Paths of datasets in the index's folder or below.
    """
    groups = (*GROUPS, REJECTED) if header.has_pairs else GROUPS
    lengths: dict[str, Arrays] = {group: [] for group in groups}
    task_ids: Arrays = []
    spans: list[Spans] = []
    id_of_task: dict[str, int] = {}
    sha256: list[str] = []
    turn_end_ids: set[int] = set()
    for path in shards:
        with DatasetFile(path) as shard:
            _check_tokenizer(shard, header)
            for group, of_shards in lengths.items():
                of_shards.append(shard.stored_lengths(group))
            spans.append(shard.spans)
            # A shard numbers its tasks itself; the dataset numbers them as if it had no shards.
            ids = [id_of_task.setdefault(task, len(id_of_task)) for task in shard.task_names]
            task_ids.append(np.array(ids, np.int32)[shard.task_ids])
            sha256.append(shard.header.content_sha256)
            turn_end_ids |= set(shard.header.turn_end_ids)
    if sum(len(ids) for ids in task_ids) == 0:
        raise InputError(f"{', '.join(header.sources)}: no sample to write")
    with atomic_write(output) as temporary, creating(temporary) as file:
        for group, parts in lengths.items():
            file[f"{group}/offsets"] = _starts(np.concatenate(parts))
        joined = Spans.join(spans)
        for name in ("offsets", "starts", "ends"):
            file[f"spans/{name}"] = getattr(joined, name)
        file["task_ids"] = np.concatenate(task_ids)
        file["task_names"] = fixed_length(list(id_of_task))
        file["shards/names"] = fixed_length(
            [str(path.relative_to(output.parent)) for path in shards]
        )
        file["shards/sha256"] = fixed_length(sha256)
        file["shards/sizes"] = np.array([path.stat().st_size for path in shards], np.int64)
        file["shards/starts"] = _starts(np.array([len(ids) for ids in task_ids]))
        write_header(file.attrs, header)
        write_turn_end_ids(file.attrs, turn_end_ids)
        file.flush()


def _starts(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return np.insert(np.cumsum(lengths, dtype=np.int64), 0, 0)


def _check_tokenizer(shard: DatasetFile, header: DatasetHeader) -> None:
    facts = shard.header.tokenizer_sha256, shard.vocab_size, shard.eos_id, shard.start_id
    expected = header.tokenizer_sha256, header.vocab_size, header.eos_id, header.start_id
    if facts != expected or shard.header.special_tokens != header.special_tokens:
        raise InputError(
            f"{shard.path}: its tokenizer is {shard.header.tokenizer_name} with sha256 "
            f"{facts[0][:12]}, but that of the dataset is {header.tokenizer_name} with "
            f"{header.tokenizer_sha256[:12]}; use the same tokenizer files on all hosts"
        )


CHUNK_LENGTH = 1 << 13


class DatasetWriter:
    """Appends samples to a dataset that appears under its name only when it is complete."""

    def __init__(self, file: h5py.File, header: DatasetHeader) -> None:
        """Lays out an empty dataset in an open file; callers use `create`."""
        dtype = token_type(header.vocab_size)
        self._inputs = _GrowingSequences.create(file, "inputs", dtype)
        self._targets = _GrowingSequences.create(file, "targets", dtype)
        has_pairs = header.has_pairs
        self._rejected = _GrowingSequences.create(file, REJECTED, dtype) if has_pairs else None
        self._spans = _GrowingSpans.create(file)
        self._task_ids = _growing(file, "task_ids", np.dtype(np.int32))
        self._id_of_task: dict[str, int] = {}
        self._turn_end_ids: set[int] = set()
        self._content = ContentHash()
        self._file = file
        write_header(file.attrs, header)

    @classmethod
    @contextmanager
    def create(cls, path: Path, header: DatasetHeader) -> Iterator[Self]:
        """Writes a temporary file, renamed to `path` at the end; on an error nothing remains."""
        with atomic_write(path) as temporary, creating(temporary) as file:
            writer = cls(file, header)
            yield writer
            writer._finish()

    def append(self, block: TokenBlock) -> None:
        """Adds samples after those already written; all are preference pairs, or none is."""
        if (block.rejected is None) != (self._rejected is None):
            raise ValueError("preference pairs and other samples are in one dataset")
        self._content.add(block)
        if block.rejected is not None and self._rejected is not None:
            self._rejected.append(block.rejected)
        self._inputs.append(block.inputs)
        self._targets.append(block.targets)
        self._spans.append(block.spans)
        self._turn_end_ids |= block.turn_end_ids
        ids = [self._id_of_task.setdefault(task, len(self._id_of_task)) for task in block.tasks]
        _append(self._task_ids, np.array(ids, np.int32))

    def _finish(self) -> None:
        self._file["task_names"] = fixed_length(list(self._id_of_task))
        write_content_hash(self._file.attrs, self._content.hexdigest())
        write_turn_end_ids(self._file.attrs, self._turn_end_ids)
        self._file.flush()


@dataclass(frozen=True, slots=True)
class _GrowingSequences:
    """The datasets of one group, kept open: HDF5 would swallow the error of a late write."""

    tokens: h5py.Dataset
    offsets: h5py.Dataset

    @classmethod
    def create(cls, file: h5py.File, group: str, dtype: np.dtype[np.unsignedinteger]) -> Self:
        offsets = _growing(file, f"{group}/offsets", np.dtype(np.int64))
        _append(offsets, np.zeros(1, np.int64))
        return cls(_growing(file, f"{group}/tokens", dtype), offsets)

    def append(self, sequences: TokenSequences) -> None:
        _append(self.offsets, len(self.tokens) + np.cumsum(sequences.lengths))
        _append(self.tokens, sequences.tokens)


@dataclass(frozen=True, slots=True)
class _GrowingSpans:
    offsets: h5py.Dataset
    starts: h5py.Dataset
    ends: h5py.Dataset

    @classmethod
    def create(cls, file: h5py.File) -> Self:
        offsets = _growing(file, "spans/offsets", np.dtype(np.int64))
        _append(offsets, np.zeros(1, np.int64))
        starts, ends = (
            _growing(file, f"spans/{name}", np.dtype(np.int32)) for name in ("starts", "ends")
        )
        return cls(offsets, starts, ends)

    def append(self, spans: Spans) -> None:
        _append(self.offsets, len(self.starts) + spans.offsets[1:])
        _append(self.starts, spans.starts)
        _append(self.ends, spans.ends)


@contextmanager
def creating(path: Path) -> Iterator[h5py.File]:
    # Without a chunk cache a write that fails does so at once. The version bounds allow
    # attributes above 64 KiB: the names of many sources. Nobody else knows the file yet, so that
    # it needs no lock, which some file systems refuse.
    file = h5py.File(path, "w", locking=False, libver=("v110", "v110"), rdcc_nbytes=0)
    try:
        yield file
    except BaseException:
        # HDF5 crashes if a full disk keeps it from flushing at close, so space is freed first.
        os.truncate(path, 0)
        with suppress(RuntimeError):  # it cannot extend the file, which is removed anyway
            file.close()
        raise
    file.close()


def _growing(file: h5py.File, name: str, dtype: np.dtype[np.integer]) -> h5py.Dataset:
    return file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNK_LENGTH,))


def _append(dataset: h5py.Dataset, values: npt.NDArray[np.integer]) -> None:
    n_before = len(dataset)
    dataset.resize((n_before + len(values),))
    dataset[n_before:] = values
