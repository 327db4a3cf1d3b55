"""Writer of datasets. `docs/formats.md` describes the file."""

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import arrays_of, parts_of
from dynapipe_hpc.data.dataset.dataset_header import (
    FORMAT,
    NO_START,
    SCHEMA_VERSION,
    DatasetHeader,
    write_header,
)
from dynapipe_hpc.data.token_block import TokenBlock

_COPIED_BYTES = 1 << 20


class DatasetWriter:
    """Appends samples to a dataset that appears under its name only when it is complete.

    HDF5 must know the size of an array that it stores as one piece. Until all samples are there,
    the arrays are kept in unnamed files in the dataset's folder.
    """

    def __init__(self, header: DatasetHeader, streams: Mapping[str, IO[bytes]]) -> None:
        """Takes an open file for each array of the header; callers use `create`."""
        self._header, self._streams, self._types = header, streams, arrays_of(header)
        self._crcs = {name: 0 for name in self._types if not name.endswith("/tokens")}
        self._id_of_task: dict[str, int] = {}
        self._turn_end_ids: set[int] = set()
        self._n_of = dict.fromkeys((*parts_of(header), "spans"), 0)
        for name in self._n_of:
            self._write(f"{name}/offsets", np.zeros(1))

    @classmethod
    @contextmanager
    def create(cls, path: Path, header: DatasetHeader) -> Iterator[Self]:
        """Writes a temporary file, renamed to `path` at the end; on an error nothing remains."""
        with atomic_write(path) as temporary, ExitStack() as stack:
            streams = {
                name: stack.enter_context(TemporaryFile(dir=path.parent))
                for name in arrays_of(header)
            }
            writer = cls(header, streams)
            yield writer
            writer._finish(temporary)

    def append(self, block: TokenBlock) -> None:
        """Adds samples after those already written; all are preference pairs, or none is."""
        parts = parts_of(self._header)
        if len(block.tokens) != len(parts):
            raise ValueError("preference pairs and other samples are in one dataset")
        known = self._id_of_task
        ids = [known.setdefault(task, len(known)) for task in block.tasks]
        counts = (*block.lengths.T, block.spans.lengths)
        for name, of_samples in zip(self._n_of, counts, strict=True):
            ends = self._n_of[name] + np.cumsum(of_samples, dtype=np.int64)
            self._write(f"{name}/offsets", ends)
            self._n_of[name] += int(of_samples.sum())
        self._write("spans/starts", block.spans.starts)
        self._write("spans/ends", block.spans.ends)
        self._write("task_ids", np.array(ids, np.int32))
        self._write("crcs", block.crcs)
        for name, tokens in zip(parts, block.tokens, strict=True):
            self._write(f"{name}/tokens", tokens)
        self._turn_end_ids |= block.turn_end_ids

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(values, self._types[name]).tobytes()
        self._streams[name].write(content)
        if name in self._crcs:
            self._crcs[name] = zlib.crc32(content, self._crcs[name])

    def _finish(self, path: Path) -> None:
        sizes = {name: stream.tell() for name, stream in self._streams.items()}
        places = self._lay_out(path, sizes)
        with path.open("r+b") as output:
            for name, stream in self._streams.items():
                output.seek(places[name])
                stream.seek(0)
                copyfileobj(stream, output, _COPIED_BYTES)

    def _lay_out(self, path: Path, sizes: Mapping[str, int]) -> dict[str, int]:
        """Writes all but the values of arrays; returns the position of each in the file."""
        header = replace(
            self._header,
            created=self._header.created or datetime.now(UTC).isoformat(timespec="seconds"),
            turn_end_ids=tuple(sorted(self._turn_end_ids)),
            task_names=tuple(self._id_of_task),
            crcs=self._crcs,
        )
        plain = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plain.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plain.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        places = {}
        with creating(path) as file:
            file.attrs["format"] = np.bytes_(FORMAT.encode())
            file.attrs["schema_version"] = SCHEMA_VERSION
            # They are in the header, too, of which other programs need nothing else.
            file.attrs["eos_id"] = header.eos_id
            file.attrs["start_id"] = NO_START if header.start_id is None else header.start_id
            file["header"] = np.bytes_(content := write_header(header))
            file.attrs["header_crc"] = zlib.crc32(content)
            for name, dtype in self._types.items():
                group = file.require_group(name.rpartition("/")[0] or "/")
                kind = h5py.h5t.py_create(dtype)
                space = h5py.h5s.create_simple((sizes[name] // dtype.itemsize,))
                at = name.rpartition("/")[2].encode()
                array = h5py.h5d.create(group.id, at, kind, space, plain)
                places[name] = array.get_offset() or 0  # None if it has no values
            file.flush()
        return places


@contextmanager
def creating(path: Path) -> Iterator[h5py.File]:
    # The version bounds give attributes and objects checksums. Nobody else knows the file yet, so
    # that it needs no lock, which some file systems refuse.
    file = h5py.File(path, "w", locking=False, libver=("v110", "v110"))
    try:
        yield file
    except BaseException:
        # HDF5 crashes if a full disk keeps it from flushing at close, so space is freed first.
        os.truncate(path, 0)
        with suppress(RuntimeError):  # it cannot extend the file, which is removed anyway
            file.close()
        raise
    file.close()
