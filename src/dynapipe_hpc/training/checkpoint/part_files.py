"""The two files of a rank's part of a checkpoint: raw numbers, and an index of their boxes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from dynapipe_hpc.data.errors import InputError, quoted
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
    """Elements `start` to `stop` of a tensor in row-major order, as boxes in the same order.

    They are a part of a row, complete rows, a part of a row: at most 2 x dimensions - 1 boxes.
    """
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


def overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes of a tensor (of one or more dimensions) have an index in common.

    It sweeps along the first dimension, in which blocks of a checkpoint are mostly disjoint.
    """
    reached: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets):
        reached = [r for r in reached if r.offsets[0] + r.sizes[0] > box.offsets[0]]
        if any(common(r, box) for r in reached):
            return True
        reached.append(box)
    return False


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
"""Size of a number by its type, as torch calls it."""
MAX_NUMBERS = 1 << 48


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Block of a tensor in a file of numbers.

    `start`: Offset of the block in the file, in bytes.
    """

    box: Box
    start: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Blocks of a tensor in a file of numbers.

    `dtype`: Type of its numbers, one of `ITEM_BYTES`. `blocks`: Blocks in the file, none of which
    reaches beyond the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[StoredBlock, ...]

    def n_bytes(self, block: StoredBlock) -> int:
        """Size of a block in the file, in bytes."""
        return prod(block.box.sizes) * ITEM_BYTES[self.dtype]


def parse_tensors(tensors: object) -> dict[str, StoredTensor]:
    """Tensors by name, whose blocks fill the file without gaps or overlap."""
    if not isinstance(tensors, Mapping):
        raise InputError(f"tensors is {quoted(tensors)}, not an object")
    by_name = {}
    for name, fields in tensors.items():
        try:
            by_name[name] = _parse(fields)
        except KeyError as error:
            raise InputError(f"{name}: {error} is missing") from None
        except (InputError, TypeError) as error:
            raise InputError(f"{name}: {error}") from None
    n_bytes_of(by_name)
    return by_name


def n_bytes_of(tensors: Mapping[str, StoredTensor]) -> int:
    """Size of the file of numbers in bytes."""
    extents = sorted(
        (block.start, tensor.n_bytes(block), name)
        for name, tensor in tensors.items()
        for block in tensor.blocks
    )
    end = 0
    for start, n_bytes, name in extents:
        if start != end:
            raise InputError(f"{name}: a block starts at byte {start:,}, not at {end:,}")
        end += n_bytes
    return end


def check_complete(name: str, parts: Sequence[StoredTensor]) -> None:
    """Checks that the blocks of all parts make one complete tensor."""
    first = parts[0]
    if any((part.dtype, part.shape) != (first.dtype, first.shape) for part in parts):
        raise InputError(f"parts differ in type or shape of {name}")
    boxes = [block.box for part in parts for block in part.blocks]
    n_found, n_all = sum(prod(box.sizes) for box in boxes), prod(first.shape)
    if n_found != n_all:
        raise InputError(f"holds {n_found} of the {n_all} numbers of {name}")
    if overlap(boxes):
        raise InputError(f"blocks of {name} overlap")


def _parse(fields: Mapping[str, Any]) -> StoredTensor:
    dtype, shape, blocks = fields["dtype"], fields["shape"], fields["blocks"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise InputError(f"dtype is {quoted(dtype)}, not one of {', '.join(ITEM_BYTES)}")
    if not _are_sizes(shape, least=1) or not shape or prod(shape) > MAX_NUMBERS:
        raise InputError(f"shape is {quoted(shape)}, not that of a tensor")
    if not isinstance(blocks, list):
        raise InputError(f"blocks is {quoted(blocks)}, not a list")
    return StoredTensor(dtype, tuple(shape), tuple(_block(b, shape) for b in blocks))


def _block(block: object, shape: Sequence[int]) -> StoredBlock:
    match block:
        case [offsets, sizes, start] if (
            _are_sizes(offsets, least=0)
            and _are_sizes(sizes, least=1)
            and isinstance(start, int)
            and start >= 0
            and len(offsets) == len(sizes) == len(shape)
            and all(o + s <= n for o, s, n in zip(offsets, sizes, shape, strict=True))
        ):
            return StoredBlock(Box(tuple(offsets), tuple(sizes)), start)
    raise InputError(f"block {quoted(block)} is not first index, sizes and start within {shape}")


def _are_sizes(values: object, least: int) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(n) is int and n >= least for n in values)


KIND, VERSION = "checkpoint part", 1


@dataclass(frozen=True, slots=True)
class PartIndex:
    """Index of the numbers that a rank wrote."""

    checksum: str
    data_checksum: str
    tensors: dict[str, StoredTensor]


def data_path(folder: Path, rank: int) -> Path:
    """Path of a rank's numbers."""
    return folder / f"part-{rank:05d}.bin"


def index_path(folder: Path, rank: int) -> Path:
    """Path of the index of a rank's numbers."""
    return folder / f"part-{rank:05d}.json"


def write_index(folder: Path, rank: int, tensors: Fields, data_checksum: str) -> str:
    """Writes the index of the numbers; returns its checksum, which covers them, too."""
    fields = {"data_checksum": data_checksum, "tensors": tensors}
    return write_fields(index_path(folder, rank), KIND, VERSION, fields)


def read_index(folder: Path, rank: int) -> PartIndex:
    """Reads what `write_index` wrote; raises `DamagedError`."""
    path = index_path(folder, rank)
    fields = read_fields(path, KIND, VERSION)
    try:
        tensors = parse_tensors(fields["tensors"])
        return PartIndex(fields["checksum"], fields["data_checksum"], tensors)
    except KeyError as error:
        raise DamagedError(f"{path}: is damaged: {error} is missing") from None
    except InputError as error:
        raise DamagedError(f"{path}: is damaged: {error}") from None


def read_tensors(folder: Path, n_parts: int) -> dict[str, dict[int, StoredTensor]]:
    """Blocks that all ranks wrote: by tensor, then by rank; raises `DamagedError`."""
    blocks: dict[str, dict[int, StoredTensor]] = {}
    for rank in range(n_parts):
        for name, stored in read_index(folder, rank).tensors.items():
            blocks.setdefault(name, {})[rank] = stored
    try:
        for name, by_rank in blocks.items():
            check_complete(name, [*by_rank.values()])
    except InputError as error:
        raise DamagedError(f"{folder}: {error}") from None
    return blocks


def check_part(folder: Path, rank: int, checksum: str) -> None:
    """Reads and checks both files of a rank; raises `DamagedError`."""
    index = read_index(folder, rank)
    if index.checksum != checksum:
        raise DamagedError(f"{index_path(folder, rank)}: belongs to another checkpoint")
    path = data_path(folder, rank)
    check_there(path)
    n_found, n_written = path.stat().st_size, n_bytes_of(index.tensors)
    if n_found != n_written:
        raise DamagedError(f"{path}: is damaged: holds {n_found:,} of {n_written:,} bytes")
    if checksum_of(path) != index.data_checksum:
        raise DamagedError(f"{path}: is damaged: its checksum differs")
