"""Storage writer with which torch.distributed.checkpoint writes the parts of one rank."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from dynapipe_hpc.data.replacing import writing
from dynapipe_hpc.training.checkpoint.files import new_checksum
from dynapipe_hpc.training.checkpoint.part_files import data_path, write_index


class PartWriter(StorageWriter):
    """Writer of a file of numbers and of its index.

    Attributes:
        checksum: Checksum of both files, set when they are on disk.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Writes into an existing folder."""
        self.checksum = ""
        self._folder, self._rank = folder, rank
        self._of_data = new_checksum()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: a writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns its argument."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns its argument."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the numbers, part after part; each result holds the offset of a part."""
        results, start = [], 0
        path = data_path(self._folder, self._rank)
        with writing(path), path.open("wb") as file:
            for item in plan.items:
                data = _bytes_of(planner.resolve_data(item))
                file.write(data)
                self._of_data.update(data)
                results.append(WriteResult(item.index, len(data), start))
                start += len(data)
            file.flush()
            os.fsync(file.fileno())
        return done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index of the parts."""
        starts = {result.index: result.storage_data for result in results[0]}
        tensors = {
            name: _to_json(name, stored, starts)
            for name, stored in metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }
        self.checksum = write_index(self._folder, self._rank, tensors, self._of_data.hexdigest())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the checkpoint is a folder."""
        return Path(checkpoint_id).is_dir()


def done(value: Any) -> Future[Any]:
    """A future that is already completed."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _bytes_of(values: Any) -> memoryview:
    if not isinstance(values, Tensor):
        raise TypeError(f"parts are tensors, not {type(values).__name__}")
    return values.contiguous().view(-1).view(torch.uint8).numpy().data


def _to_json(
    name: str, stored: TensorStorageMetadata, starts: dict[MetadataIndex, int]
) -> dict[str, Any]:
    return {
        "dtype": str(stored.properties.dtype).removeprefix("torch."),
        "shape": list(stored.size),
        "blocks": [
            [list(chunk.offsets), list(chunk.sizes), starts[MetadataIndex(name, chunk.offsets)]]
            for chunk in stored.chunks
        ],
    }
