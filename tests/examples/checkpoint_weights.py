"""Loading the weights of a checkpoint into one process."""

from pathlib import Path

from torch import Tensor

from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """All unsplit weights of a checkpoint, by their names in the unsplit model."""
    checksums = Description.read(checkpoint).part_checksums
    for rank, checksum in enumerate(checksums):
        check_part(checkpoint, rank, checksum)
    return CheckpointReader(checkpoint, len(checksums)).unsplit("weight")
