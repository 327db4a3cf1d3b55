"""HDF5 files from an untrusted source: their arrays, attributes and formats."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input, why_unreadable

MAX_TEXTS = 64
"""Maximum number of variable-length texts per attribute; in memory, they share no bytes."""


def open_stored(path: Path) -> h5py.File:
    """Opens an HDF5 file for reading; raises `OSError`."""
    with open_input(path) as file:
        return stored_in(file)


def stored_in(file: BinaryIO) -> h5py.File:
    """The HDF5 file behind an open file, even if its name now belongs to another file."""
    return h5py.File(f"/proc/self/fd/{file.fileno()}", "r", locking=False)


def stored_array(file: h5py.Group, name: str) -> h5py.Dataset:
    """An array in one uncompressed piece of this file, so no larger than the file."""
    item = stored_object(file, name)
    if not isinstance(item, h5py.Dataset):
        raise InputError(f"'{name}' is a group, not an array")
    layout = item.id.get_create_plist()
    is_one_piece = layout.get_layout() == h5py.h5d.CONTIGUOUS and not layout.get_external_count()
    if item.shape is None or not is_one_piece or item.id.get_storage_size() < item.nbytes:
        raise InputError(f"'{name}' is not stored as one complete, uncompressed piece of this file")
    return item


def stored_group(file: h5py.Group, name: str) -> h5py.Group:
    item = stored_object(file, name)
    if not isinstance(item, h5py.Group):
        raise InputError(f"'{name}' is not a group")
    return item


def stored_groups(file: h5py.Group) -> Iterator[h5py.Group]:
    """The groups in a group, which holds nothing else."""
    return (stored_group(file, name) for name in file)


def stored_object(file: h5py.Group, name: str) -> Any:
    """A group or array that is in this file itself, not reached through a link."""
    item: Any = file
    for part in name.split("/"):
        if not isinstance(item, h5py.Group) or not holds(item, part):
            raise InputError(f"'{name}' is missing")
        if item.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
            raise InputError(f"'{name}' is a link to another place")
        item = item[part]
    return item


def holds(group: h5py.Group, name: str) -> bool:
    """Whether a group has a member of this name; links are not followed."""
    return bool(group.id.links.exists(name.encode()))


def attributes_of(owner: h5py.HLObject) -> dict[str, Any]:
    """Attributes of a file, group or array as built-in Python types.

    Texts, whether of fixed or variable length, become `str`, and arrays of texts become tuples.
    """
    for name in owner.attrs:
        kept = owner.attrs.get_id(name)
        is_variable = h5py.check_vlen_dtype(kept.dtype) or kept.dtype.kind == "O"
        if is_variable and (n := prod(kept.shape or ())) > MAX_TEXTS:
            raise InputError(
                f"attribute '{name}' has {n} texts of variable length, more than {MAX_TEXTS}; "
                "write them with a fixed length"
            )
    return {name: _own_type(name, value) for name, value in owner.attrs.items()}


def _own_type(name: str, value: Any) -> Any:
    try:
        match value:
            case bytes():
                return value.decode()
            case str():
                return value.encode(errors="surrogateescape").decode()
            case np.generic():
                return value.item()
            case np.ndarray() if value.dtype.kind in "SO" and value.ndim == 1:
                return tuple(_own_type(name, each) for each in value.tolist())
    except UnicodeError:
        raise InputError(f"attribute '{name}' is not UTF-8") from None
    return value


def format_of(path: Path) -> str:
    """The attribute `format` that every HDF5 file of this package has; empty if it is missing."""
    if reason := why_unreadable(path):
        raise InputError(
            f"{path}: {reason}; dynapipe-hpc preprocess makes datasets, and dynapipe-hpc profile "
            "cost tables"
        )
    try:
        with open_stored(path) as file:
            return str(attributes_of(file).get("format", ""))
    except InputError:
        return ""
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a complete HDF5 file ({error}); make it again with dynapipe-hpc "
            "preprocess or profile"
        ) from None
