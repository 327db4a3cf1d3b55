"""Safe access to groups and arrays in an HDF5 file from an untrusted source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input


def open_stored(path: Path) -> h5py.File:
    """Opens an HDF5 file for reading.

    Raises:
        OSError: The file cannot be opened, or is not a complete HDF5 file.
    """
    with open_input(path) as file:
        # Opening the descriptor gives the file that was checked, whatever has its name now.
        # Without a chunk cache HDF5 reads just the bytes asked for, not the chunk around them.
        name = f"/proc/self/fd/{file.fileno()}"
        return h5py.File(name, "r", locking=False, rdcc_nbytes=0)


def stored_array(file: h5py.Group, name: str) -> h5py.Dataset:
    """An HDF5 dataset whose values are all in this file and uncompressed.

    Reading it takes no more memory than the file takes on disk: it follows no link, decompresses
    nothing and loads no plugin.

    Args:
        file: The file, or a group of it.
        name: Name of the dataset.
    """
    item = stored_object(file, name)
    if not isinstance(item, h5py.Dataset):
        raise InputError(f"'{name}' is a group, not an array")
    if filters := ", ".join(_filters(item)):
        raise InputError(f"'{name}' is stored with a filter ({filters}); write it without")
    n_bytes = (item.size or 0) * item.dtype.itemsize
    if item.is_virtual or item.external or item.id.get_storage_size() < n_bytes:
        raise InputError(f"'{name}' has {n_bytes:,} bytes, which are not all in the file")
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


def _filters(array: h5py.Dataset) -> Iterator[str]:
    layout = array.id.get_create_plist()
    for k in range(layout.get_nfilters()):
        number, _, _, name = layout.get_filter(k)
        yield name.decode(errors="replace") or str(number)
