"""How torch.distributed.checkpoint reads what all ranks wrote."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from dynapipe_hpc.training.checkpoint.files import DamagedError
from dynapipe_hpc.training.checkpoint.part_files import data_path, read_index
from dynapipe_hpc.training.checkpoint.part_writer import done


@dataclass(frozen=True, slots=True)
class _Block:
    """Where a block of a tensor is."""

    rank: int
    start: int
    sizes: torch.Size
    dtype: torch.dtype

    def of(self, data: Tensor) -> Tensor:
        """The block, from the bytes of its file."""
        n_bytes = self.sizes.numel() * self.dtype.itemsize
        return data[self.start : self.start + n_bytes].view(self.dtype).view(self.sizes)


class PartReader(StorageReader):
    """Reads from the files of all ranks that wrote a checkpoint, whose checksums are right."""

    def __init__(self, folder: Path, n_parts: int) -> None:
        """Reads what is where.

        Raises:
            DamagedError: A file is damaged, or numbers are missing.
        """
        self._folder = folder
        self._blocks: dict[MetadataIndex, _Block] = {}
        tensors: dict[str, TensorStorageMetadata] = {}
        for rank in range(n_parts):
            for name, fields in read_index(folder, rank)["tensors"].items():
                self._add(rank, name, fields, tensors)
        for name, stored in tensors.items():
            _check_whole(folder, name, stored)
        self.metadata = Metadata(dict(tensors))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """What all ranks wrote."""
        return self.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The same."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The same."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies numbers to where the planner wants them, one file after the other."""
        of_rank: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            of_rank.setdefault(self._blocks[item.storage_index].rank, []).append(item)
        for rank, items in of_rank.items():
            path = data_path(self._folder, rank)
            size = path.stat().st_size
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
            for item in items:
                source = self._blocks[item.storage_index].of(data)
                target = planner.resolve_tensor(item)
                target.copy_(narrowed(source, item.storage_offsets, item.lengths))
                planner.commit_tensor(item, target)
        return done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Folders only."""
        return Path(checkpoint_id).is_dir()

    def _add(
        self,
        rank: int,
        name: str,
        fields: Mapping[str, Any],
        tensors: dict[str, TensorStorageMetadata],
    ) -> None:
        dtype: torch.dtype = getattr(torch, fields["dtype"])
        new = TensorStorageMetadata(TensorProperties(dtype), torch.Size(fields["shape"]), [])
        chunks = tensors.setdefault(name, new).chunks
        for offsets, sizes, start in fields["blocks"]:
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            chunks.append(chunk)
            block = _Block(rank, start, chunk.sizes, dtype)
            self._blocks[MetadataIndex(name, chunk.offsets)] = block


def narrowed(values: Tensor, offsets: torch.Size, lengths: torch.Size) -> Tensor:
    """A block of a tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        values = values.narrow(dimension, offset, length)
    return values


def _check_whole(folder: Path, name: str, stored: TensorStorageMetadata) -> None:
    """Blocks do not overlap, because ranks write what is theirs; so it is enough to count."""
    n_found = sum(chunk.sizes.numel() for chunk in stored.chunks)
    if n_found != stored.size.numel():
        raise DamagedError(
            f"{folder}: holds {n_found} of the {stored.size.numel()} numbers of {name}"
        )
