"""The two files that a rank writes: raw numbers, and what they are."""

from math import prod
from pathlib import Path
from typing import Any

import torch

from dynapipe_hpc.training.checkpoint.files import (
    DamagedError,
    Fields,
    check_there,
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
    path = data_path(folder, rank)
    check_there(path)
    n_found, n_written = path.stat().st_size, _n_bytes(index["tensors"])
    if n_found != n_written:
        raise DamagedError(f"{path}: is damaged: holds {n_found:,} of {n_written:,} bytes")
    if checksum_of(path) != index["data_checksum"]:
        raise DamagedError(f"{path}: is damaged: its checksum differs")


def _n_bytes(tensors: Fields) -> int:
    """Of a rank's numbers, whose blocks lie one behind the other."""
    return sum(
        getattr(torch, stored["dtype"]).itemsize * sum(prod(b[1]) for b in stored["blocks"])
        for stored in tensors.values()
    )
