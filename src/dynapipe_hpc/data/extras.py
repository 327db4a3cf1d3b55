"""Optional packages, and the extras of pip that install them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dynapipe_hpc.data.errors import InputError

EXTRA_OF: Mapping[str, str] = {
    "h5py": "hdf5",
    "tokenizers": "text",
    "transformers": "text",
    "zstandard": "zstd",
    "pyarrow": "parquet",
    "jinja2": "text",
    "matplotlib": "report",
    "mpi4py": "train",
    "safetensors": "train",
    "torch": "train",
}
"""Smallest extra that brings a package; `train` brings all of training."""


@contextmanager
def optional_packages() -> Iterator[None]:
    """Block that may import packages of extras."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        extra = EXTRA_OF[package]
        every = "" if extra == "train" else "; [train] brings all that training needs"
        raise InputError(
            f"{package} is not installed; install the extra [{extra}]: "
            f"pip install 'dynapipe-hpc[{extra}]'{every}"
        ) from error
