"""The weights of a checkpoint, in one process."""

from pathlib import Path

from torch import Tensor

from dynapipe_hpc.training.checkpoint.description import Description
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.transfer import read_whole


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """All weights, whole, by their names in the unsplit model.

    Args:
        checkpoint: The folder of a complete checkpoint.

    Returns:
        Weights as exact as training keeps them: float32 where it computes in 16 bits.

    Raises:
        DamagedError: The checkpoint is not complete, or damaged.
    """
    checksums = Description.read(checkpoint).part_checksums
    for rank, checksum in enumerate(checksums):
        check_part(checkpoint, rank, checksum)
    return read_whole(checkpoint, len(checksums))
