"""The two files that a rank writes: raw numbers, and what they are."""

from pathlib import Path
from typing import Any

from dynapipe_hpc.training.checkpoint.files import (
    DamagedError,
    Fields,
    checksum_of,
    read_fields,
    write_fields,
)

KIND, VERSION = "checkpoint part", 1


def data_path(folder: Path, rank: int) -> Path:
    """The numbers."""
    return folder / f"part-{rank:05d}.bin"


def index_path(folder: Path, rank: int) -> Path:
    """What they are."""
    return folder / f"part-{rank:05d}.json"


def write_index(folder: Path, rank: int, tensors: Fields, data_checksum: str) -> str:
    """Writes what the numbers are; returns a checksum of all of it.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    fields = {"data_checksum": data_checksum, "tensors": tensors}
    return write_fields(index_path(folder, rank), KIND, VERSION, fields)


def read_index(folder: Path, rank: int) -> dict[str, Any]:
    """What `write_index` wrote.

    Raises:
        DamagedError: It cannot be read, or not as it was written.
    """
    return read_fields(index_path(folder, rank), KIND, VERSION)


def check_part(folder: Path, rank: int, checksum: str) -> None:
    """Reads all that a rank wrote.

    Raises:
        DamagedError: It cannot be read, or not as it was written.
    """
    index = read_index(folder, rank)
    if index["checksum"] != checksum:
        raise DamagedError(f"{index_path(folder, rank)}: belongs to another checkpoint")
    if checksum_of(data_path(folder, rank)) != index["data_checksum"]:
        raise DamagedError(f"{data_path(folder, rank)}: is damaged: its checksum differs")
