"""Writing and reading of parts with torch.distributed.checkpoint."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dynapipe_hpc.training.checkpoint.part_reader import PartReader
from dynapipe_hpc.training.checkpoint.part_writer import PartWriter
from dynapipe_hpc.training.checkpoint.parts import Part
from dynapipe_hpc.training.checkpoint.planners import PartLoadPlanner, PartSavePlanner

# Ranks agree over MPI, outside of this module.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


def write_parts(folder: Path, rank: int, parts: Sequence[Part]) -> str:
    """Writes a rank's contribution to a checkpoint; may be called on any thread.

    Returns:
        A checksum of the contribution, which is then on disk.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    writer = PartWriter(folder, rank)
    with _with_causes():
        save({}, storage_writer=writer, planner=PartSavePlanner(parts), no_dist=True)
    return writer.checksum


def read_parts(folder: Path, n_parts: int, parts: Sequence[Part]) -> None:
    """Overwrites parts with what all ranks wrote, even if they had cut the model otherwise.

    Raises:
        DamagedError: A file is damaged, or the checkpoint is of another model.
    """
    reader = PartReader(folder, n_parts)
    with _with_causes():
        load({}, storage_reader=reader, planner=PartLoadPlanner(parts), no_dist=True)


def read_tensors(folder: Path, n_parts: int, kind: str = "weight") -> dict[str, Tensor]:
    """All unsplit tensors of a kind, by their names in the unsplit model.

    Raises:
        DamagedError: A file is damaged.
    """
    tensors = {}
    for name, stored in PartReader(folder, n_parts).metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata) and name.startswith(f"{kind}/"):
            tensors[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
    origin = {name: torch.Size([0] * tensor.ndim) for name, tensor in tensors.items()}
    parts = [Part(name, t.shape, origin[name], t) for name, t in tensors.items()]
    read_parts(folder, n_parts, parts)
    return {name.removeprefix(f"{kind}/"): tensor for name, tensor in tensors.items()}


@contextmanager
def _with_causes() -> Iterator[None]:
    """Raises the first error of a checkpoint exception instead of the collection."""
    try:
        yield
    except CheckpointException as failed:
        raise next(iter(failed.failures.values()))[0] from None
