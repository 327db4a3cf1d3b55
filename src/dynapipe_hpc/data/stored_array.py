"""Arrays in an HDF5 file, which can say anything about what it holds."""

from typing import Any

import h5py

from dynapipe_hpc.data.errors import InputError


def stored_array(file: h5py.Group, name: str) -> h5py.Dataset:
    """A dataset whose values are all in this file, as they are.

    So it takes no more memory than the file takes on the disk: no link leads elsewhere, and
    nothing unfolds while it is read.

    Args:
        file: The file, or a group of it.
        name: Of the dataset.

    Raises:
        InputError: It is missing, or its values are elsewhere.
    """
    found = stored_object(file, name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"'{name}' is missing, a group has its name")
    n_bytes = (found.size or 0) * found.dtype.itemsize
    if found.is_virtual or found.external or found.id.get_storage_size() < n_bytes:
        raise InputError(f"'{name}' has {n_bytes:,} bytes, which are not all in the file")
    return found


def stored_object(file: h5py.Group, name: str) -> Any:
    """A group or dataset of this file, behind no link to another place.

    Raises:
        InputError: It is missing, or a link.
    """
    found: Any = file
    for part in name.split("/"):
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            raise InputError(f"'{name}' is missing")
        if not isinstance(link, h5py.HardLink):
            raise InputError(f"'{name}' is a link to another place")
        found = found[part]
    return found
