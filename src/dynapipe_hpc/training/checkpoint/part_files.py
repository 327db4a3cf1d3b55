"""The two files of a rank's part of a checkpoint: raw numbers, and an index of their boxes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple, Self

from dynapipe_hpc.training.checkpoint.folder import (
    DamagedError,
    Fields,
    check_there,
    checksum_of,
    read_fields,
    write_fields,
)


@dataclass(frozen=True, slots=True)
class Box:
    """Rectangular block of a tensor. `offsets`: First index of the block, per dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes_of(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Elements `start` to `stop` of a tensor in row-major order, as boxes in the same order."""
    if len(shape) == 1:
        yield Box((start,), (stop - start,))
        return
    n = prod(shape[1:])
    while start < stop:
        row, column = divmod(start, n)
        n_rows = (stop - start) // n if column == 0 else 0
        if n_rows:
            yield Box((row, *(0 for _ in shape[1:])), (n_rows, *shape[1:]))
            start += n_rows * n
            continue
        end = min(stop, (row + 1) * n)
        for box in boxes_of(shape[1:], column, column + end - start):
            yield Box((row, *box.offsets), (1, *box.sizes))
        start = end


def common(one: Box, other: Box) -> Box | None:
    """The indices that two boxes of a tensor have in common; None if there are none."""
    starts = tuple(map(max, one.offsets, other.offsets))
    sizes = tuple(
        min(a + n, b + m) - start
        for a, n, b, m, start in zip(
            one.offsets, one.sizes, other.offsets, other.sizes, starts, strict=True
        )
    )
    return Box(starts, sizes) if all(size > 0 for size in sizes) else None


ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Size of a number in bytes, by torch's name of its type."""


class StoredBlock(NamedTuple):
    """Block of a tensor in a file of numbers, and its first byte there."""

    box: Box
    start: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's blocks in a file of numbers, of a type in `ITEM_BYTES`."""

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[StoredBlock, ...]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The tensor that an entry of an index describes."""
        blocks = (
            StoredBlock(Box(tuple(offsets), tuple(sizes)), start)
            for offsets, sizes, start in fields["blocks"]
        )
        return cls(fields["dtype"], tuple(fields["shape"]), tuple(blocks))

    @property
    def n_bytes(self) -> int:
        """Size of all blocks in the file, in bytes."""
        return ITEM_BYTES[self.dtype] * sum(prod(block.box.sizes) for block in self.blocks)


KIND, VERSION = "checkpoint part", 1


def data_path(folder: Path, rank: int) -> Path:
    """Path of the file of a rank's numbers."""
    return folder / f"part-{rank:05d}.bin"


def index_path(folder: Path, rank: int) -> Path:
    """Path of the index file of a rank's numbers."""
    return folder / f"part-{rank:05d}.json"


def write_index(folder: Path, rank: int, tensors: Fields, data_checksum: str) -> str:
    """Writes the index of the numbers; returns its checksum, which covers the numbers, too."""
    fields = {"data_checksum": data_checksum, "tensors": tensors}
    return write_fields(index_path(folder, rank), KIND, VERSION, fields)


def read_tensors(folder: Path, n_parts: int) -> dict[str, dict[int, StoredTensor]]:
    """Blocks that all ranks wrote: by tensor, then by rank; raises `DamagedError`."""
    tensors: dict[str, dict[int, StoredTensor]] = {}
    for rank in range(n_parts):
        index = read_fields(index_path(folder, rank), KIND, VERSION)
        for name, fields in index["tensors"].items():
            tensors.setdefault(name, {})[rank] = StoredTensor.from_fields(fields)
    return tensors


def check_parts(folder: Path, checksums: Iterable[str]) -> None:
    """Reads and checks the files of all ranks; raises `DamagedError`."""
    for rank, checksum in enumerate(checksums):
        check_part(folder, rank, checksum)


def check_part(folder: Path, rank: int, checksum: str) -> None:
    """Reads and checks both files of a rank; raises `DamagedError`."""
    index = read_fields(index_path(folder, rank), KIND, VERSION)
    if index["checksum"] != checksum:
        raise DamagedError(f"{index_path(folder, rank)}: belongs to another checkpoint")
    path = data_path(folder, rank)
    check_there(path)
    n_found = path.stat().st_size
    n_written = sum(StoredTensor.from_fields(each).n_bytes for each in index["tensors"].values())
    if n_found != n_written:
        raise DamagedError(f"{path}: is damaged: holds {n_found:,} of {n_written:,} bytes")
    if checksum_of(path) != index["data_checksum"]:
        raise DamagedError(f"{path}: is damaged: its checksum differs")
