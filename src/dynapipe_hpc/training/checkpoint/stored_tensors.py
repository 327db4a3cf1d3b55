"""Checked index of the tensors in a part of a checkpoint, from an untrusted file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.checkpoint.boxes import Box, overlap

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Size of a number by its type, as torch calls it."""
MAX_NUMBERS = 1 << 48


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Block of a tensor in a file of numbers.

    Attributes:
        box: Box of the tensor that the block holds.
        start: Offset of the block in the file, in bytes.
    """

    box: Box
    start: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Blocks of a tensor in a file of numbers.

    Attributes:
        dtype: Type of its numbers, one of `ITEM_BYTES`.
        shape: Shape of the complete tensor.
        blocks: Blocks in the file, none of which reaches beyond the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[StoredBlock, ...]

    def n_bytes(self, block: StoredBlock) -> int:
        """Size of a block in the file, in bytes."""
        return prod(block.box.sizes) * ITEM_BYTES[self.dtype]


def parse_tensors(tensors: object) -> dict[str, StoredTensor]:
    """Tensors by name, whose blocks fill the file without gaps or overlap.

    Raises:
        InputError: They do not, or a value is invalid; the message names tensor and value.
    """
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
    """Size of the file of numbers in bytes.

    Raises:
        InputError: Blocks overlap in the file, or leave gaps.
    """
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
    """Checks that the blocks of all parts make one complete tensor.

    Raises:
        InputError: Parts differ in type or shape, numbers are missing, or blocks overlap.
    """
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
