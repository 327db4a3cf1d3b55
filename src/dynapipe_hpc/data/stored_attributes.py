"""Attributes in an HDF5 file from an untrusted source."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import h5py
import numpy as np

from dynapipe_hpc.data.errors import InputError

MAX_TEXTS = 64
"""Most variable-length texts of one attribute: they may share bytes in the file, not in memory."""


class StoredAttributes(Mapping[str, Any]):
    """HDF5 attributes as built-in Python types, read when asked for.

    Texts become `str`, and arrays of texts become tuples, whether of fixed or variable length.
    """

    def __init__(self, owner: h5py.HLObject) -> None:
        """Reads the attributes of a file, group or array."""
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        """The value of an attribute.

        Raises:
            KeyError: There is no such attribute.
            InputError: Its text is not UTF-8, or it holds too many texts.
        """
        kept = self._owner.attrs.get_id(name)
        is_variable = h5py.check_vlen_dtype(kept.dtype) or kept.dtype.kind == "O"
        if is_variable and (n := prod(kept.shape or ())) > MAX_TEXTS:
            raise InputError(
                f"attribute '{name}' has {n} texts of variable length, more than {MAX_TEXTS}; "
                "write them with a fixed length"
            )
        return _own_type(name, self._owner.attrs[name])

    def __iter__(self) -> Iterator[str]:
        """Names of the attributes."""
        return iter(self._owner.attrs)

    def __len__(self) -> int:
        """Number of attributes."""
        return len(self._owner.attrs)


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
