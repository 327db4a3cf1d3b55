"""Reading of a checkpoint's parts, of which other ranks may have written other boxes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dynapipe_hpc.training.checkpoint.boxes import Box, common
from dynapipe_hpc.training.checkpoint.files import DamagedError
from dynapipe_hpc.training.checkpoint.part_files import data_path, read_tensors
from dynapipe_hpc.training.checkpoint.parts import StatePart
from dynapipe_hpc.training.checkpoint.stored_tensors import ITEM_BYTES, StoredBlock, StoredTensor

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class CheckpointReader:
    """Reader of the numbers of a checkpoint, which have been verified before (`check_part`)."""

    def __init__(self, folder: Path, n_parts: int) -> None:
        """Reads the indices of all parts.

        Raises:
            DamagedError: An index is damaged.
        """
        self._folder = folder
        self._tensors = read_tensors(folder, n_parts)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor, by its kind and name."""
        return name in self._tensors

    def fill(self, parts: Sequence[StatePart], *, converting: bool = False) -> None:
        """Overwrites parts with what all ranks wrote, even if they had cut the model otherwise.

        Args:
            parts: Blocks of tensors of the unsplit model.
            converting: Whether the checkpoint may hold them in another type.

        Raises:
            DamagedError: The checkpoint is of another model.
        """
        of_rank: dict[int, list[_Piece]] = {}
        for part in parts:
            stored = _stored(self._tensors, part, converting=converting)
            for rank, piece in _pieces(part, stored):
                of_rank.setdefault(rank, []).append(piece)
        for rank, pieces in of_rank.items():
            path = data_path(self._folder, rank)
            size = path.stat().st_size
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
            for piece in pieces:
                piece.copy_from(data)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of an unsplit tensor, by its kind and name.

        Raises:
            DamagedError: The checkpoint lacks the tensor.
        """
        if not self.has(name):
            raise DamagedError(f"{name} is missing in the checkpoint")
        stored = next(iter(self._tensors[name].values()))
        shape = torch.Size(stored.shape)
        values = torch.empty((stop - start, *shape[1:]), dtype=DTYPES[stored.dtype])
        self.fill([StatePart(name, shape, torch.Size([start] + [0] * (len(shape) - 1)), values)])
        return values

    def unsplit(self, kind: str) -> dict[str, Tensor]:
        """All tensors of a kind, by their names in the unsplit model."""
        return {
            name.removeprefix(f"{kind}/"): self.rows(name, 0, next(iter(stored.values())).shape[0])
            for name, stored in self._tensors.items()
            if name.startswith(f"{kind}/")
        }


def read_parts(folder: Path, n_parts: int, parts: Sequence[StatePart]) -> None:
    """Overwrites parts with what all ranks wrote, see `CheckpointReader.fill`."""
    CheckpointReader(folder, n_parts).fill(parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Overlap of a part and a stored block."""

    part: StatePart
    dtype: torch.dtype
    block: StoredBlock
    box: Box

    def copy_from(self, data: Tensor) -> None:
        """Copies the numbers from the bytes of the block's file."""
        dtype, shape = self.dtype, torch.Size(self.block.box.sizes)
        n_bytes = shape.numel() * dtype.itemsize
        stored = data[self.block.start : self.block.start + n_bytes].view(dtype).view(shape)
        target = _within(self.part.values, self.part.offsets, self.box)
        target.copy_(_within(stored, self.block.box.offsets, self.box))


def _stored(
    tensors: Mapping[str, Mapping[int, StoredTensor]], part: StatePart, *, converting: bool
) -> Mapping[int, StoredTensor]:
    """Blocks of a part's tensor, by the rank that wrote them."""
    if part.name not in tensors:
        raise DamagedError(f"{part.name} is missing in the checkpoint")
    by_rank = tensors[part.name]
    first = next(iter(by_rank.values()))
    stored = (DTYPES[first.dtype], first.shape)
    expected = (part.values.dtype, tuple(part.tensor_shape))
    if stored[1] != expected[1] or (stored[0] != expected[0] and not converting):
        raise DamagedError(
            f"the checkpoint holds {part.name} as {stored[0]} of shape {list(stored[1])}, "
            f"not {expected[0]} of shape {list(expected[1])}"
        )
    return by_rank


def _pieces(part: StatePart, by_rank: Mapping[int, StoredTensor]) -> Iterator[tuple[int, _Piece]]:
    """Pieces of a part, with the ranks that wrote them."""
    box = Box(tuple(part.offsets), tuple(part.values.shape))
    for rank, stored in by_rank.items():
        for block in stored.blocks:
            if piece := common(box, block.box):
                yield rank, _Piece(part, DTYPES[stored.dtype], block, piece)


def _within(values: Tensor, offsets: Sequence[int], box: Box) -> Tensor:
    """A box of a tensor, of which `values` begin at `offsets`; a view."""
    for dimension, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        values = values.narrow(dimension, start - offsets[dimension], size)
    return values
