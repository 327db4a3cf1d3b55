"""Tensors as MPI buffers."""

from collections.abc import Iterator
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor

MAX_NUMBERS = 1 << 30
"""Most numbers in one MPI call: many libraries count in 32 bits."""

# Only types that MPI can add: it would treat the bits of a bfloat16 as an integer.
_SUMMABLE = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}
# By size in bytes, for copies: MPI has no name for some dtypes of torch.
_MOVED = {
    1: (torch.uint8, MPI.UINT8_T),
    2: (torch.int16, MPI.UINT16_T),
    4: (torch.int32, MPI.UINT32_T),
    8: (torch.int64, MPI.UINT64_T),
}


def summable(values: Tensor) -> list[Any]:
    """An MPI buffer of numbers to add.

    Raises:
        TypeError: MPI cannot add numbers of that type.
    """
    mpi_type = _SUMMABLE.get(values.dtype)
    if mpi_type is None:
        known = ", ".join(str(dtype) for dtype in _SUMMABLE)
        raise TypeError(f"MPI cannot add {values.dtype}; convert to one of {known}")
    return [values.numpy(), mpi_type]


def movable(values: Tensor) -> list[Any]:
    """An MPI buffer of numbers to copy, of any type."""
    dtype, mpi_type = _MOVED[values.element_size()]
    return [values.view(-1).view(dtype).numpy(), mpi_type]


def pieces(values: Tensor) -> Iterator[Tensor]:
    """Parts of a contiguous tensor, each small enough for one call."""
    flat = values.view(-1)
    for start in range(0, len(flat), MAX_NUMBERS):
        yield flat[start : start + MAX_NUMBERS]
