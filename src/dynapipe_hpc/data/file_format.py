"""The format that an HDF5 file says it has."""

from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.stored_array import open_stored
from dynapipe_hpc.data.stored_attributes import StoredAttributes


def format_of(path: Path) -> str:
    """The attribute `format` that every HDF5 file of this package has; empty if it is missing."""
    if reason := why_unreadable(path):
        raise InputError(
            f"{path}: {reason}; dynapipe-hpc preprocess makes datasets, and dynapipe-hpc profile "
            "cost tables"
        )
    try:
        with open_stored(path) as file:
            return str(StoredAttributes(file).get("format", ""))
    except InputError:
        return ""
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a complete HDF5 file ({error}); make it again with dynapipe-hpc "
            "preprocess or profile"
        ) from None


def has_format(path: Path, name: str) -> bool:
    """Whether a file exists and says that it has this format."""
    try:
        return format_of(path) == name
    except InputError:
        return False
