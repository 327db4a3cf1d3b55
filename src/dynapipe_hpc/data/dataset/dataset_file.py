"""Reader of datasets. `docs/formats.md` describes the file."""

import hashlib
import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self
from weakref import finalize

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_header import (
    FORMAT,
    SCHEMA_VERSION,
    DatasetHeader,
    read_header,
)
from dynapipe_hpc.data.errors import InputError, listed
from dynapipe_hpc.data.input_file import open_input, why_unreadable
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.stored_file import attributes_of, stored_array, stored_in
from dynapipe_hpc.data.token_block import (
    NO_TOKENS,
    PARTS,
    SampleTokens,
    TokenArray,
    token_type,
)
from dynapipe_hpc.data.trained_tokens import Spans

AGAIN = "make it again with dynapipe-hpc preprocess"
Lengths = npt.NDArray[np.int64]


def parts_of(header: DatasetHeader) -> tuple[str, ...]:
    """Names of the parts that a dataset's samples have; each part is a group of the file."""
    return PARTS if header.has_pairs else PARTS[:2]


def arrays_of(header: DatasetHeader) -> dict[str, np.dtype[Any]]:
    """Type of every array of a dataset, by name; all are flat and little endian."""
    tokens = {f"{part}/tokens": token_type(header.vocab_size) for part in parts_of(header)}
    offsets = {f"{name}/offsets": np.dtype("<i8") for name in (*parts_of(header), "spans")}
    bounds = {f"spans/{name}": np.dtype("<i4") for name in ("starts", "ends")}
    of_samples = {"task_ids": np.dtype("<i4"), "crcs": np.dtype("<u4")}
    return tokens | offsets | bounds | of_samples


class DatasetFile:
    """A dataset open for reading, by any number of threads and processes at once.

    Everything but the tokens is in memory, 32 bytes per sample and 8 per span. Tokens are read on
    demand, always a complete sample, because every read compares its checksum.

    Without a start token, the first token of a sample does not count in lengths, and `read` leaves
    it out: a sample of n tokens becomes a sample of n - 1 with a start token of its own.

    `task_ids`: Task id of every sample, shape (n_samples,). `crcs`: CRC-32 of the tokens of every
    sample as they were written, shape (n_samples,). `places`: Position of the tokens of each part
    in the file, in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Opens and checks a dataset."""
        if reason := why_unreadable(path):
            raise InputError(
                f"{path}: not a dataset: {reason}; make it with dynapipe-hpc preprocess"
            )
        self.path, self._file = path, open_input(path)
        finalize(self, self._file.close)
        self._recent: tuple[int, list[TokenArray]] = -1, []
        try:
            stored = stored_in(self._file)
        except OSError as error:
            raise InputError(f"{path}: not a complete HDF5 file ({error}); {AGAIN}") from None
        with stored:
            try:
                self._load(stored)
            except (ValueError, TypeError, OSError, KeyError, RuntimeError) as error:
                raise InputError(f"{path}: not a dataset to read: {error}; {AGAIN}") from None

    def _load(self, file: h5py.File) -> None:
        attributes = attributes_of(file)
        if attributes.get("format") != FORMAT:
            raise InputError("an HDF5 file of another format")
        if str(version := attributes.get("schema_version")) != str(SCHEMA_VERSION):
            raise InputError(
                f"has schema version {version}, but this dynapipe-hpc reads {SCHEMA_VERSION}"
            )
        content = bytes(stored_array(file, "header")[()])
        if zlib.crc32(content) != attributes.get("header_crc"):
            raise InputError("'header' is not as it was written")
        self.header = header = read_header(content)
        arrays = {name: stored_array(file, name) for name in arrays_of(header)}
        for name, dtype in arrays_of(header).items():
            if (array := arrays[name]).ndim != 1 or array.dtype != dtype:
                raise InputError(f"'{name}' has shape {array.shape} and type {array.dtype}")
        tokens = [arrays[f"{part}/tokens"] for part in parts_of(header)]
        self.places = [array.id.get_offset() or 0 for array in tokens]
        values = {name: arrays[name][...] for name in header.crcs}
        for name, of_samples in values.items():
            if zlib.crc32(of_samples) != header.crcs[name]:
                raise InputError(f"'{name}' is not as it was written")
        self.task_ids: npt.NDArray[np.int32] = values["task_ids"]
        self.crcs: npt.NDArray[np.uint32] = values["crcs"]
        # Offsets of parts and of spans side by side: a sample needs one look-up.
        names = (*parts_of(header), "spans")
        self._offsets = np.column_stack([values[f"{name}/offsets"] for name in names])
        bounds = np.column_stack([values["spans/starts"], values["spans/ends"]])
        self.spans = Spans(self._offsets[:, -1], bounds)
        self._type = tokens[0].dtype

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; lengths and tasks stay usable."""
        self._file.close()

    @property
    def files(self) -> tuple[Self, ...]:
        """The dataset alone; `JoinedDatasets` has several."""
        return (self,)

    @property
    def n_samples(self) -> int:
        return len(self.task_ids)

    @property
    def lengths(self) -> Lengths:
        """Number of stored tokens per sample and part, shape (n_samples, n_parts)."""
        return np.diff(self._offsets[:, :-1], axis=0)

    @property
    def input_lengths(self) -> Lengths:
        """Number of input tokens of every sample, shape (n_samples,)."""
        return self._lengths_of(0)

    @property
    def target_lengths(self) -> Lengths:
        """Number of target tokens of every sample, >= 1, shape (n_samples,)."""
        return self._lengths_of(1)

    @property
    def rejected_lengths(self) -> Lengths:
        """Number of tokens of every rejected answer, 0 where there is none, shape (n_samples,)."""
        if not self.header.has_pairs:
            return np.zeros(self.n_samples, np.int64)
        return np.diff(self._offsets[:, 2])

    def _lengths_of(self, part: int) -> Lengths:
        lengths: Lengths = np.diff(self._offsets[:, part])
        if self.header.start_id is None:  # the first token of a sample is only read
            lengths -= (np.diff(self._offsets[:, 0]) > 0) == (part == 0)
        return lengths

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all samples, as lengths count them."""
        return int((self.input_lengths + self.target_lengths + self.rejected_lengths).sum())

    @property
    def predicted_spans(self) -> Spans:
        """Spans of trained tokens; positions do not count a first token that is only read."""
        return self.spans.without_first_tokens() if self.header.start_id is None else self.spans

    @property
    def content_sha256(self) -> str:
        """SHA-256 of the checksums of all samples and arrays, in hexadecimal."""
        of_arrays = json.dumps(dict(self.header.crcs), sort_keys=True)
        return hashlib.sha256(self.crcs.tobytes() + of_arrays.encode()).hexdigest()

    def read(self, sample: Sample, *, keeps_end: bool = False) -> SampleTokens:
        """Reads the used tokens of a sample.

        `keeps_end`: Whether the last tokens of its input are used, not the first ones.

        Raises `InputError`: The sample is damaged, or cannot be read.
        """
        inputs, targets, *others = self.parts(sample.sample_id)
        rejected, start = others[0] if others else NO_TOKENS, self.header.start_id
        if start is None and len(inputs):
            start, inputs = int(inputs[0]), inputs[1:]
        elif start is None:
            start, targets = int(targets[0]), targets[1:]
        n, m, k = sample.input_tokens, sample.target_tokens, sample.rejected_tokens
        if n > len(inputs) or m > len(targets) or k > len(rejected):
            stored = Sample(0, len(inputs), len(targets), rejected_tokens=len(rejected))
            raise ValueError(
                f"sample {sample.sample_id} has {stored.describe()}, not {sample.describe()}"
            )
        begin = len(inputs) - n if keeps_end else 0
        answer = rejected[:k] if k else NO_TOKENS
        return SampleTokens(inputs[begin : begin + n], targets[:m], answer, start)

    def parts(self, sample_id: int) -> list[TokenArray]:
        """All tokens of a sample, part by part, including a first token that is only read.

        Raises `InputError`: The sample is damaged, or cannot be read.
        """
        recent, parts = self._recent  # slices of a long sample are read one after the other
        if recent == sample_id:
            return parts
        starts, ends = self._offsets[sample_id : sample_id + 2, :-1].tolist()
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        content = self._read(sample_id, starts, lengths)
        if zlib.crc32(content) != self.crcs[sample_id]:
            raise DamagedSampleError(
                f"{self.path}: sample {sample_id} is damaged; restore the file from a copy, or run "
                "dynapipe-hpc preprocess again (dynapipe-hpc inspect --verify counts all of them)"
            )
        tokens = np.frombuffer(content, self._type)
        # A device would stop at such a token without saying where it is. (`argmax` takes a fifth of
        # the time of `max`.)
        if (largest := tokens[tokens.argmax()]) >= self.header.vocab_size:
            raise InputError(
                f"{self.path}: sample {sample_id} holds token {largest}, but 'vocab_size' is "
                f"{self.header.vocab_size}; {AGAIN}"
            )
        parts, start = [], 0
        for n_tokens in lengths:
            parts.append(tokens[start : start + n_tokens])
            start += n_tokens
        self._recent = sample_id, parts
        return parts

    def _read(self, sample_id: int, starts: Sequence[int], lengths: Sequence[int]) -> bytes:
        # Copied, not mapped: a memory map would crash the process where the file was cut off, and
        # would change with the file after the check.
        size, fd = self._type.itemsize, self._file.fileno()
        try:
            parts = [
                os.pread(fd, size * n_tokens, place + size * start)
                for place, start, n_tokens in zip(self.places, starts, lengths, strict=True)
            ]
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot read sample {sample_id}: {error.strerror}"
            ) from None
        content = b"".join(parts)
        if len(content) < size * sum(lengths):
            raise InputError(
                f"{self.path}: cannot read sample {sample_id}: the file has been truncated to "
                f"{os.lseek(fd, 0, os.SEEK_END):,} bytes since it was opened"
            )
        return content


class DamagedSampleError(InputError):
    """A sample differs from what was written."""


def verify_dataset(path: Path) -> str:
    """Reads all samples of a dataset, and compares them with their checksums.

    Returns the `content_sha256` of the dataset. Raises `InputError`, which counts the samples
    that differ and names the first, or names one that cannot be read.
    """
    damaged = []
    with DatasetFile(path) as dataset:
        for sample_id in range(dataset.n_samples):
            try:
                dataset.parts(sample_id)
            except DamagedSampleError:
                damaged.append(sample_id)
        if damaged:
            raise DamagedSampleError(
                f"{path}: {len(damaged):,} of {dataset.n_samples:,} samples are damaged "
                f"({listed(damaged)}); restore the file from a copy, or run dynapipe-hpc "
                "preprocess again"
            )
        return dataset.content_sha256


class JoinedDatasets:
    """Datasets of the same tokenizer, read as one: sample and task ids are numbered through all.

    Attributes are those of a `DatasetFile`. In the header, `turn_end_ids` are the end tokens of all
    datasets, `start_id` is None if that depends on the sample, and `has_pairs` says whether the
    samples of any dataset are preference pairs.
    """

    def __init__(self, files: Mapping[str, DatasetFile]) -> None:
        """Joins one or more datasets; keys are their names."""
        self.files = tuple(files.values())
        first, *others = self.files
        for other in others:
            if differs := first.header.difference(other.header):
                self.close()
                raise InputError(
                    f"data.mixture: {other.path} {differs}, as {first.path} has; preprocess both "
                    "with the same tokenizer"
                )
        headers = [file.header for file in self.files]
        start_ids = {header.start_id for header in headers}
        self.header = replace(
            first.header,
            start_id=start_ids.pop() if len(start_ids) == 1 else None,
            turn_end_ids=tuple(sorted({n for header in headers for n in header.end_ids})),
            has_pairs=any(header.has_pairs for header in headers),
            task_names=tuple(
                f"{n}/{t}" for n, file in files.items() for t in file.header.task_names
            ),
        )
        self.starts = [0, *accumulate(file.n_samples for file in self.files)]
        self.input_lengths = np.concatenate([file.input_lengths for file in self.files])
        self.target_lengths = np.concatenate([file.target_lengths for file in self.files])
        self.rejected_lengths = np.concatenate([file.rejected_lengths for file in self.files])
        n_tasks = [0, *accumulate(len(file.header.task_names) for file in self.files)]
        self.task_ids: npt.NDArray[np.int32] = np.concatenate(
            [file.task_ids + n for file, n in zip(self.files, n_tasks, strict=False)]
        )
        self.spans = Spans.join([file.spans for file in self.files])
        self.predicted_spans = Spans.join([file.predicted_spans for file in self.files])

    def close(self) -> None:
        """Closes the files; everything but their tokens stays usable."""
        for file in self.files:
            file.close()

    def read(self, sample: Sample, *, keeps_end: bool = False) -> SampleTokens:
        """Reads tokens as `DatasetFile.read` does."""
        index = bisect_right(self.starts, sample.sample_id) - 1
        local = replace(sample, sample_id=sample.sample_id - self.starts[index])
        return self.files[index].read(local, keeps_end=keeps_end)


Dataset = DatasetFile | JoinedDatasets
"""A dataset, or several read as one."""
