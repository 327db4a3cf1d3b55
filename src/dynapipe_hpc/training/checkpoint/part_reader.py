"""Storage reader with which torch.distributed.checkpoint reads the parts of all ranks."""

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

from dynapipe_hpc.training.checkpoint.part_files import data_path, read_tensors
from dynapipe_hpc.training.checkpoint.part_writer import done
from dynapipe_hpc.training.checkpoint.stored_tensors import ITEM_BYTES, StoredTensor

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


@dataclass(frozen=True, slots=True)
class _Block:
    """Location of a block of a tensor in the file of a rank."""

    rank: int
    start: int
    sizes: torch.Size
    dtype: torch.dtype

    def of(self, data: Tensor) -> Tensor:
        """The values of the block, from the bytes of its file."""
        n_bytes = self.sizes.numel() * self.dtype.itemsize
        return data[self.start : self.start + n_bytes].view(self.dtype).view(self.sizes)


class PartReader(StorageReader):
    """Reader of the files, already verified, of all ranks that wrote a checkpoint."""

    def __init__(self, folder: Path, n_parts: int) -> None:
        """Reads the index files of all ranks.

        Raises:
            DamagedError: A file is damaged, or numbers are missing.
        """
        self._folder = folder
        self._blocks: dict[MetadataIndex, _Block] = {}
        tensors = read_tensors(folder, n_parts)
        self.metadata = Metadata({name: self._add(name, of) for name, of in tensors.items()})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """Metadata of the tensors that all ranks wrote."""
        return self.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns its argument."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns its argument."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies numbers to the planner's tensors, file by file."""
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
        """Whether the checkpoint is a folder."""
        return Path(checkpoint_id).is_dir()

    def _add(self, name: str, by_rank: Mapping[int, StoredTensor]) -> TensorStorageMetadata:
        first = next(iter(by_rank.values()))
        dtype = DTYPES[first.dtype]
        chunks = []
        for rank, stored in by_rank.items():
            for block in stored.blocks:
                offsets, sizes = torch.Size(block.box.offsets), torch.Size(block.box.sizes)
                chunks.append(ChunkStorageMetadata(offsets, sizes))
                found = _Block(rank, block.start, sizes, dtype)
                self._blocks[MetadataIndex(name, offsets)] = found
        return TensorStorageMetadata(TensorProperties(dtype), torch.Size(first.shape), chunks)


def narrowed(values: Tensor, offsets: torch.Size, lengths: torch.Size) -> Tensor:
    """A block of a tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        values = values.narrow(dimension, offset, length)
    return values
