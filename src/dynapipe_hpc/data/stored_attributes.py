"""Attributes in an HDF5 file, whichever program wrote them."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import h5py
import numpy as np

from dynapipe_hpc.data.errors import InputError

MOST_TEXTS = 64
"""Texts of variable length in one attribute: all may be one text of the file, but are copied."""


class StoredAttributes(Mapping[str, Any]):
    """Attributes as Python's own types, read when asked for.

    Texts become `str` and arrays of them tuples, of fixed or variable length as they may be.
    """

    def __init__(self, owner: h5py.HLObject) -> None:
        """Reads those of a file, group or dataset."""
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        """The value of an attribute.

        Raises:
            KeyError: There is no such attribute.
            InputError: It holds what is no text, or too many texts.
        """
        kept = self._owner.attrs.get_id(name)
        is_variable = h5py.check_vlen_dtype(kept.dtype) or kept.dtype.kind == "O"
        if is_variable and (n := prod(kept.shape or ())) > MOST_TEXTS:
            raise InputError(
                f"attribute '{name}' has {n} texts of variable length, more than {MOST_TEXTS}; "
                "write them with a fixed length"
            )
        return _own_type(name, self._owner.attrs[name])

    def __iter__(self) -> Iterator[str]:
        """Names."""
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
