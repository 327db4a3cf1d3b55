"""Reading of a checkpoint's parts, of which other ranks may have written other boxes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dynapipe_hpc.training.checkpoint.boxes import Box, common
from dynapipe_hpc.training.checkpoint.files import DamagedError
from dynapipe_hpc.training.checkpoint.part_files import data_path, read_tensors
from dynapipe_hpc.training.checkpoint.parts import Part
from dynapipe_hpc.training.checkpoint.stored_tensors import ITEM_BYTES, StoredBlock, StoredTensor

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


def read_parts(folder: Path, n_parts: int, parts: Sequence[Part]) -> None:
    """Overwrites parts with what all ranks wrote, even if they had cut the model otherwise.

    The files of numbers have been verified before (`check_part`).

    Args:
        folder: The checkpoint.
        n_parts: Number of ranks that wrote it.
        parts: Blocks of tensors of the unsplit model.

    Raises:
        DamagedError: An index is damaged, or the checkpoint is of another model.
    """
    tensors = read_tensors(folder, n_parts)
    of_rank: dict[int, list[_Piece]] = {}
    for part in parts:
        for rank, piece in _pieces(part, _stored(tensors, part)):
            of_rank.setdefault(rank, []).append(piece)
    for rank, pieces in of_rank.items():
        path = data_path(folder, rank)
        size = path.stat().st_size
        data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        for piece in pieces:
            piece.copy_from(data)


def read_unsplit(folder: Path, n_parts: int, kind: str = "weight") -> dict[str, Tensor]:
    """All tensors of a kind, by their names in the unsplit model.

    Raises:
        DamagedError: An index is damaged.
    """
    parts = []
    for name, by_rank in read_tensors(folder, n_parts).items():
        if name.startswith(f"{kind}/"):
            stored = next(iter(by_rank.values()))
            values = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
            parts.append(Part(name, values.shape, torch.Size([0] * values.ndim), values))
    read_parts(folder, n_parts, parts)
    return {part.name.removeprefix(f"{kind}/"): part.values for part in parts}


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What a part and a stored block have in common."""

    part: Part
    block: StoredBlock
    box: Box

    def copy_from(self, data: Tensor) -> None:
        """Copies the numbers from the bytes of the block's file."""
        dtype, shape = self.part.values.dtype, torch.Size(self.block.box.sizes)
        n_bytes = shape.numel() * dtype.itemsize
        stored = data[self.block.start : self.block.start + n_bytes].view(dtype).view(shape)
        target = _within(self.part.values, self.part.offsets, self.box)
        target.copy_(_within(stored, self.block.box.offsets, self.box))


def _stored(
    tensors: Mapping[str, Mapping[int, StoredTensor]], part: Part
) -> Mapping[int, StoredTensor]:
    """What each rank wrote of a part's tensor."""
    if part.name not in tensors:
        raise DamagedError(f"{part.name} is missing in the checkpoint")
    by_rank = tensors[part.name]
    first = next(iter(by_rank.values()))
    found = (DTYPES[first.dtype], first.shape)
    expected = (part.values.dtype, tuple(part.tensor_shape))
    if found != expected:
        raise DamagedError(
            f"the checkpoint holds {part.name} as {found[0]} of shape {list(found[1])}, "
            f"not {expected[0]} of shape {list(expected[1])}"
        )
    return by_rank


def _pieces(part: Part, by_rank: Mapping[int, StoredTensor]) -> Iterator[tuple[int, _Piece]]:
    """Pieces of a part, with the ranks that wrote them."""
    box = Box(tuple(part.offsets), tuple(part.values.shape))
    for rank, stored in by_rank.items():
        for block in stored.blocks:
            if piece := common(box, block.box):
                yield rank, _Piece(part, block, piece)


def _within(values: Tensor, offsets: Sequence[int], box: Box) -> Tensor:
    """A box of a tensor, of which `values` begin at `offsets`; a view."""
    for dimension, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        values = values.narrow(dimension, start - offsets[dimension], size)
    return values
