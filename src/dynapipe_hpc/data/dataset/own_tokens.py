"""Tokens in the dataset file itself."""

from dataclasses import dataclass
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.open_dataset import array_of, read_tokens
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.token_block import TokenArray

Offsets = npt.NDArray[np.int64]
GROUPS = ("inputs", "targets")
REJECTED = "rejected"
"""Group of the rejected answers, in datasets of preference pairs."""


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """Tokens of a dataset without shards, or of one shard.

    Attributes:
        file: The open HDF5 file.
        arrays: All tokens, concatenated, by group: "inputs", "targets", and of pairs "rejected".
    """

    file: h5py.File
    arrays: dict[str, h5py.Dataset]

    @classmethod
    def load(cls, file: h5py.File, n_tokens: dict[str, int]) -> Self:
        """Finds the tokens, and checks that their number matches the offsets.

        Raises:
            InputError: The number of tokens differs from `n_tokens`, or an array is missing.
        """
        arrays = {group: array_of(file, f"{group}/tokens", "u") for group in n_tokens}
        for group, tokens in arrays.items():
            if n_tokens[group] != len(tokens):
                raise InputError(
                    f"'{group}/offsets' ends at {n_tokens[group]}, but '{group}/tokens' holds "
                    f"{len(tokens)}"
                )
        return cls(file, arrays)

    def read(self, group: str, _: int, start: int, end: int) -> TokenArray:
        """Reads tokens as `ShardReader.read`."""
        return read_tokens(self.file, self.arrays[group], start, end)

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def offsets_of(file: h5py.File, group: str) -> Offsets:
    """Offsets at which the tokens of every input or target begin, and the end of the last.

    Raises:
        InputError: The offsets are missing, do not start at 0, or decrease.
    """
    offsets: Offsets = array_of(file, f"{group}/offsets", "i")[:]
    # Comparisons, because differences may wrap around.
    if len(offsets) == 0 or offsets[0] != 0 or np.any(offsets[1:] < offsets[:-1]):
        raise InputError(f"'{group}/offsets' must start at 0 and never decrease")
    return offsets
