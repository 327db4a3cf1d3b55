"""Safe access to groups and arrays in an HDF5 file from an untrusted source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input


def open_stored(path: Path) -> h5py.File:
    """Opens an HDF5 file for reading.

    Raises:
        OSError: The file cannot be opened, or is not a complete HDF5 file.
    """
    with open_input(path) as file:
        return stored_in(file)


def stored_in(file: BinaryIO) -> h5py.File:
    """The HDF5 file that an open file is, whatever has its name now."""
    return h5py.File(f"/proc/self/fd/{file.fileno()}", "r", locking=False)


def stored_array(file: h5py.Group, name: str) -> h5py.Dataset:
    """An array whose values are one piece of this file, so that none takes more memory than that.

    Args:
        file: The file, or a group of it.
        name: Name of the array.
    """
    item = stored_object(file, name)
    if not isinstance(item, h5py.Dataset):
        raise InputError(f"'{name}' is a group, not an array")
    layout = item.id.get_create_plist()
    is_one_piece = layout.get_layout() == h5py.h5d.CONTIGUOUS and not layout.get_external_count()
    if item.shape is None or not is_one_piece or item.id.get_storage_size() < item.nbytes:
        raise InputError(f"'{name}' is not one piece of the file, uncompressed")
    return item


def stored_group(file: h5py.Group, name: str) -> h5py.Group:
    """A group of this file."""
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
