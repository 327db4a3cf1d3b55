"""The length of a padded row."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])

ROW_MULTIPLE = 8


def padded(tokens: Tokens) -> Tokens:
    """Rounds up to a multiple of 8, so that lengths are few and kernels well aligned."""
    return -(-tokens // ROW_MULTIPLE) * ROW_MULTIPLE
