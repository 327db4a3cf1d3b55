"""Tokens in a dataset file itself, and in the shards of an index."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_header import read_header, strings
from dynapipe_hpc.data.dataset.open_dataset import array_of, open_dataset, read_tokens
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.stored_attributes import StoredAttributes
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
        """Finds the tokens, and checks that their number matches the offsets."""
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
    """Offsets at which the tokens of every input or target begin, and the end of the last."""
    offsets: Offsets = array_of(file, f"{group}/offsets", "i")[:]
    # Comparisons, because differences may wrap around.
    if len(offsets) == 0 or offsets[0] != 0 or np.any(offsets[1:] < offsets[:-1]):
        raise InputError(f"'{group}/offsets' must start at 0 and never decrease")
    return offsets


class ShardError(InputError):
    """A shard of a dataset cannot be used; the message names both and the remedy."""


MAX_OPEN_FILES = 64
"""Most shards kept open, far fewer than the files that a process may have open."""


@dataclass(slots=True)
class ShardReader:
    """Tokens of a dataset whose index is open.

    Attributes:
        index: Path of the index.
        names: Paths of the shards' files, relative to the index.
        sha256: `ContentHash` of every shard.
        starts: Id of the first sample of every shard, then the number of samples.
        offsets: Offsets of every sample's tokens in the dataset, by group, see `OwnTokens`.
    """

    index: Path
    names: tuple[str, ...]
    sha256: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    offsets: dict[str, npt.NDArray[np.int64]]
    _open: dict[int, OwnTokens] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        index: Path,
        file: h5py.File,
        offsets: dict[str, npt.NDArray[np.int64]],
    ) -> Self:
        """Reads the table of shards, and checks that each exists and has its recorded size.

        Raises:
            InputError: The table is inconsistent.
            ShardError: A shard is missing or of another size.
        """
        names = strings(array_of(file, "shards/names", "S")[:])
        sha256 = strings(array_of(file, "shards/sha256", "S")[:])
        sizes: npt.NDArray[np.int64] = array_of(file, "shards/sizes", "i")[:]
        starts: npt.NDArray[np.int64] = array_of(file, "shards/starts", "i")[:]
        n_samples = len(offsets["inputs"]) - 1
        if len(starts) == 0 or starts[0] != 0 or np.any(starts[1:] < starts[:-1]):
            raise InputError("'shards/starts' must start at 0 and never decrease")
        if starts[-1] != n_samples:
            raise InputError(f"'shards/starts' ends at {starts[-1]}, not at {n_samples} samples")
        if {len(names), len(sha256), len(sizes)} != {len(starts) - 1}:
            raise InputError("the arrays of 'shards' have different lengths")
        reader = cls(index, names, sha256, starts, offsets)
        for k, n_bytes in enumerate(sizes.tolist()):
            reader._check_size(k, n_bytes)
        return reader

    def read(self, group: str, sample_id: int, start: int, end: int) -> TokenArray:
        """Tokens `start` to `end` of a group of the dataset, all of one shard.

        Args:
            group: `inputs`, `targets` or `rejected`.
            sample_id: Id of the first sample that they belong to.
            start: Index of the first token in the dataset.
            end: Index after the last token.

        Raises:
            ShardError: The shard is damaged, or not the one from which the index was made.
        """
        k = int(np.searchsorted(self.starts, sample_id, side="right")) - 1
        before = self.offsets[group][self.starts[k]]
        try:
            return self._shard(k).read(group, sample_id, start - before, end - before)
        except OSError as error:
            raise self._unusable_error(k, f"cannot be read: {error}") from None

    def close(self) -> None:
        """Closes the shards."""
        for k in list(self._open):
            self._close(k)

    def _shard(self, k: int) -> OwnTokens:
        if k not in self._open:
            while len(self._open) >= MAX_OPEN_FILES:
                # Any will do: samples come in random order, so none is likelier to be next.
                self._close(next(iter(self._open)))
            self._open[k] = self._open_shard(k)
        return self._open[k]

    def _close(self, k: int) -> None:
        self._open.pop(k).close()

    def _open_shard(self, k: int) -> OwnTokens:
        file: h5py.File | None = None
        try:
            file = open_dataset(self.index.parent / self.names[k])
            return self._tokens_of(k, file)
        except (ValueError, TypeError, OSError, KeyError, RuntimeError) as error:
            if file is not None:
                file.close()
            raise self._unusable_error(k, f"cannot be used: {error}") from None

    def _tokens_of(self, k: int, file: h5py.File) -> OwnTokens:
        header = read_header(StoredAttributes(file))
        if header.content_sha256 != self.sha256[k]:
            raise InputError(
                f"it holds other samples (checksum {header.content_sha256[:12]}, not "
                f"{self.sha256[k][:12]})"
            )
        first, end = self.starts[k], self.starts[k + 1]
        return OwnTokens.load(
            file, {group: int(at[end] - at[first]) for group, at in self.offsets.items()}
        )

    def _check_size(self, k: int, n_bytes: int) -> None:
        try:
            size_bytes = (self.index.parent / self.names[k]).stat().st_size
        except OSError as error:
            raise self._unusable_error(k, f"cannot be found: {error.strerror}") from None
        if size_bytes != n_bytes:
            raise self._unusable_error(k, f"has {size_bytes} bytes, not {n_bytes}")

    def _unusable_error(self, k: int, reason: str) -> ShardError:
        first, end = self.starts[k], self.starts[k + 1]
        return ShardError(
            f"{self.index}: its shard {self.names[k]} (samples {first} to {end - 1}) {reason}; "
            "restore it, or repeat the same dynapipe-hpc preprocess with --force: it makes only "
            "what is missing or damaged"
        )
