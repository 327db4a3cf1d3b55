"""The checkpoint that a path stands for."""

from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.description import NAME
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder

CHECKPOINTS = "checkpoints"
"""Folder of a run that holds its checkpoints."""


def find_checkpoint(path: Path) -> Path | None:
    """A checkpoint itself, or the newest complete one of a run folder; None for another folder.

    Raises:
        InputError: It is a run folder without a complete checkpoint, or may not be read.
    """
    if (path / NAME).exists():
        return path
    if not (path / CHECKPOINTS).is_dir():
        return None
    complete = CheckpointFolder(path / CHECKPOINTS, CheckpointConfig()).complete()
    if not complete:
        raise InputError(f"{path}: is a run without a complete checkpoint; name another")
    return complete[0]
