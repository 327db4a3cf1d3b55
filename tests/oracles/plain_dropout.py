"""Masks of dropout from docs/models.md, with Python's integers, one number at a time."""

import hashlib

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15


def factors(
    seed: int, name: str, rate: float, tokens: list[tuple[int, int, int] | None], n_columns: int
) -> npt.NDArray[np.float64]:
    """Factor of each number, shape (tokens, columns)."""
    place = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    found = np.ones((len(tokens), n_columns))
    for row, token in enumerate(tokens):
        if token is None:
            continue
        upper = mixed_64(key(*token) ^ place) >> 33
        for column in range(n_columns):
            number = mixed_32(upper ^ mixed_32(column)) % 2**31
            found[row, column] = 0 if number < round(rate * 2**31) else 1 / (1 - rate)
    return found


def key(iteration: int, sample_id: int, position: int) -> int:
    """Key of a token."""
    return next_64(next_64(next_64(iteration) ^ sample_id) ^ position)


def next_64(x: int) -> int:
    """A step of SplitMix64."""
    return mixed_64((x + GOLDEN) % 2**64)


def mixed_64(x: int) -> int:
    """The finalizer of SplitMix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def mixed_32(x: int) -> int:
    """lowbias32."""
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16
