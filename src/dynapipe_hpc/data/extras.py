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
"""Smallest extra that installs each package; `train` installs all that training needs."""


@contextmanager
def optional_packages() -> Iterator[None]:
    """Block that may import optional packages; the error for a missing one names its extra."""
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
