"""The tokens in a file that is open."""

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


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """The tokens of a dataset that has no shards, or of one shard.

    Attributes:
        file: The file.
        arrays: For inputs and targets, all tokens one behind the other.
    """

    file: h5py.File
    arrays: dict[str, h5py.Dataset]

    @classmethod
    def load(cls, file: h5py.File, n_tokens: dict[str, int]) -> Self:
        """Finds the tokens, and looks whether they are as many as the offsets say.

        Raises:
            InputError: Tokens are missing, or there are others.
        """
        arrays = {group: array_of(file, f"{group}/tokens", "u") for group in GROUPS}
        for group, tokens in arrays.items():
            if n_tokens[group] != len(tokens):
                raise InputError(
                    f"'{group}/offsets' ends at {n_tokens[group]}, but '{group}/tokens' holds "
                    f"{len(tokens)}"
                )
        return cls(file, arrays)

    def read(self, group: str, _: int, start: int, end: int) -> TokenArray:
        """As `ShardReader.read`."""
        return read_tokens(self.file, self.arrays[group], start, end)

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


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
