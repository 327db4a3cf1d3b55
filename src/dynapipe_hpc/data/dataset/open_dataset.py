"""Opening the HDF5 files of datasets, with clear errors for other files."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dynapipe_hpc.data.dataset.dataset_header import (
    FORMAT,
    PAIRS_VERSION,
    SCHEMA_VERSION,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.file_format import has_format
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.output_file import FileKind
from dynapipe_hpc.data.stored_array import open_stored, stored_array
from dynapipe_hpc.data.stored_attributes import StoredAttributes
from dynapipe_hpc.data.token_block import TokenArray

AGAIN = "make it again with dynapipe-hpc preprocess"
DATASET = FileKind("a dataset", lambda path: has_format(path, FORMAT))


def open_dataset(path: Path) -> h5py.File:
    """Opens a dataset or an index for reading."""
    if reason := why_unreadable(path):
        raise InputError(f"{path}: not a dataset: {reason}; make it with dynapipe-hpc preprocess")
    try:
        file = open_stored(path)
    except OSError as error:
        raise InputError(f"{path}: not a complete HDF5 file ({error}); {AGAIN}") from None
    try:
        _check_format(path, file)
    except InputError:
        file.close()
        raise
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        file.close()
        raise InputError(f"{path}: a damaged HDF5 file ({error}); {AGAIN}") from None
    return file


def array_of(file: h5py.File, name: str, kind: str) -> h5py.Dataset:
    """A one-dimensional array of a dataset whose dtype has the numpy kind `kind`."""
    values = stored_array(file, name)
    if values.ndim != 1 or values.dtype.kind != kind:
        raise InputError(f"'{name}' has shape {values.shape} and type {values.dtype}")
    return values


def read_tokens(file: h5py.File, array: h5py.Dataset, start: int, end: int) -> TokenArray:
    """The tokens `start` to `end` of an array in an open file.

    Raises:
        OSError: The tokens cannot be read, or the file has been truncated since it was opened:
            past its end HDF5 would read zeros.
    """
    values: TokenArray = array[start:end]
    n_bytes = os.fstat(file.id.get_vfd_handle()).st_size
    if n_bytes < file.id.get_filesize():
        raise OSError(f"the file has been truncated to {n_bytes:,} bytes since it was opened")
    return values


def _is_dataset(attributes: StoredAttributes) -> bool:
    try:
        return bool(attributes.get("format") == FORMAT)
    except InputError:  # not text
        return False


def _check_format(path: Path, file: h5py.File) -> None:
    attributes = StoredAttributes(file)
    if not _is_dataset(attributes):
        raise InputError(f"{path}: an HDF5 file, but not a dataset; {AGAIN}")
    version: Any = attributes.get("schema_version")
    if np.ndim(version) or version not in (SCHEMA_VERSION, PAIRS_VERSION):
        raise InputError(
            f"{path}: has schema version {version}, but this dynapipe-hpc reads "
            f"{SCHEMA_VERSION} and {PAIRS_VERSION}; {AGAIN}, or use the dynapipe-hpc that made it"
        )
