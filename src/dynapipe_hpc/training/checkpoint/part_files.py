"""The two files of a rank's part of a checkpoint: raw numbers, and their index."""

from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.checkpoint.files import (
    DamagedError,
    Fields,
    check_there,
    checksum_of,
    read_fields,
    write_fields,
)
from dynapipe_hpc.training.checkpoint.stored_tensors import (
    StoredTensor,
    check_complete,
    n_bytes_of,
    parse_tensors,
)

KIND, VERSION = "checkpoint part", 1


@dataclass(frozen=True, slots=True)
class PartIndex:
    """Index of the numbers that a rank wrote.

    Attributes:
        checksum: Checksum of the index itself.
        tensors: Blocks of tensors, by name.
    """

    checksum: str
    data_checksum: str
    tensors: dict[str, StoredTensor]


def data_path(folder: Path, rank: int) -> Path:
    """Path of a rank's numbers."""
    return folder / f"part-{rank:05d}.bin"


def index_path(folder: Path, rank: int) -> Path:
    """Path of the index of a rank's numbers."""
    return folder / f"part-{rank:05d}.json"


def write_index(folder: Path, rank: int, tensors: Fields, data_checksum: str) -> str:
    """Writes the index of the numbers; returns a checksum of the index, which covers the numbers.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    fields = {"data_checksum": data_checksum, "tensors": tensors}
    return write_fields(index_path(folder, rank), KIND, VERSION, fields)


def read_index(folder: Path, rank: int) -> PartIndex:
    """Reads what `write_index` wrote.

    Raises:
        DamagedError: The index is missing, damaged or invalid.
    """
    path = index_path(folder, rank)
    fields = read_fields(path, KIND, VERSION)
    try:
        tensors = parse_tensors(fields["tensors"])
        return PartIndex(fields["checksum"], fields["data_checksum"], tensors)
    except KeyError as error:
        raise DamagedError(f"{path}: is damaged: {error} is missing") from None
    except InputError as error:
        raise DamagedError(f"{path}: is damaged: {error}") from None


def read_tensors(folder: Path, n_parts: int) -> dict[str, dict[int, StoredTensor]]:
    """Blocks that all ranks wrote: by tensor, then by rank.

    Raises:
        DamagedError: A file is damaged, or the parts are no whole tensors.
    """
    blocks: dict[str, dict[int, StoredTensor]] = {}
    for rank in range(n_parts):
        for name, stored in read_index(folder, rank).tensors.items():
            blocks.setdefault(name, {})[rank] = stored
    try:
        for name, by_rank in blocks.items():
            check_complete(name, [*by_rank.values()])
    except InputError as error:
        raise DamagedError(f"{folder}: {error}") from None
    return blocks


def check_part(folder: Path, rank: int, checksum: str) -> None:
    """Reads and checks both files of a rank.

    Raises:
        DamagedError: A file is missing or damaged, or belongs to another checkpoint.
    """
    index = read_index(folder, rank)
    if index.checksum != checksum:
        raise DamagedError(f"{index_path(folder, rank)}: belongs to another checkpoint")
    path = data_path(folder, rank)
    check_there(path)
    n_found, n_written = path.stat().st_size, n_bytes_of(index.tensors)
    if n_found != n_written:
        raise DamagedError(f"{path}: is damaged: holds {n_found:,} of {n_written:,} bytes")
    if checksum_of(path) != index.data_checksum:
        raise DamagedError(f"{path}: is damaged: its checksum differs")
