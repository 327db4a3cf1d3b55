"""Reads tokens from the file of their dataset."""

from dataclasses import dataclass
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.open_dataset import array_of
from dynapipe_hpc.data.token_block import TokenArray

Offsets = npt.NDArray[np.int64]
GROUPS = ("inputs", "targets")


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """The tokens of a dataset that has no shards.

    Attributes:
        arrays: For inputs and targets, all tokens one behind the other.
    """

    arrays: dict[str, h5py.Dataset]

    @classmethod
    def load(cls, file: h5py.File, offsets: dict[str, Offsets]) -> Self:
        """Looks whether the offsets cover the tokens.

        Raises:
            InputError: Tokens are missing, or there are others.
        """
        arrays = {group: array_of(file, f"{group}/tokens", "u") for group in GROUPS}
        for group, tokens in arrays.items():
            if offsets[group][-1] != len(tokens):
                raise InputError(
                    f"'{group}/offsets' ends at {offsets[group][-1]}, but '{group}/tokens' holds "
                    f"{len(tokens)}"
                )
        return cls(arrays)

    def read(self, group: str, _: int, start: int, end: int) -> TokenArray:
        """As `ShardReader.read`."""
        found: TokenArray = self.arrays[group][start:end]
        return found

    def close(self) -> None:
        """The arrays close with their file."""


def offsets_of(file: h5py.File, group: str) -> Offsets:
    """Where the tokens of every input or target begin, and where the last ends.

    Raises:
        InputError: The offsets are missing, or make no sense.
    """
    offsets: Offsets = array_of(file, f"{group}/offsets", "i")[:]
    # Compared, because differences may wrap around.
    if len(offsets) == 0 or offsets[0] != 0 or np.any(offsets[1:] < offsets[:-1]):
        raise InputError(f"'{group}/offsets' does not rise from 0")
    return offsets
