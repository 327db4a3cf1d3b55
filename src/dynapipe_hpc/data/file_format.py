"""What an HDF5 file says it is."""

from pathlib import Path

import h5py

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable


def format_of(path: Path) -> str:
    """The attribute `format`, which every file of ours has; empty without it.

    Raises:
        InputError: It is missing, or not an HDF5 file.
    """
    if reason := why_unreadable(path):
        raise InputError(
            f"{path}: {reason}; dynapipe-hpc preprocess makes datasets and dynapipe-hpc profile "
            "cost tables"
        )
    try:
        with h5py.File(path, "r", locking=False) as file:
            found = file.attrs.get("format", "")
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path}: not a complete HDF5 file ({error}); make it again with dynapipe-hpc "
            "preprocess or profile"
        ) from None
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def has_format(path: Path, name: str) -> bool:
    """Whether a file is there and says that it is of this format."""
    try:
        return format_of(path) == name
    except InputError:
        return False
