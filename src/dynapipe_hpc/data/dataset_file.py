"""Reads a dataset. `docs/formats.md` describes the file."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset_header import FORMAT, SCHEMA_VERSION, read_header, strings
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.token_block import TokenArray

_AGAIN = "make it again with dynapipe-hpc preprocess"


class DatasetFile:
    """A dataset open for reading, by any number of processes at once.

    Offsets are in memory, 16 bytes per sample; tokens are read from the file when asked for.

    Attributes:
        path: The file.
        header: Tokenizer, sources and time of creation.
        task_ids: Task of every sample, shape (n_samples,).
        task_names: Tasks by id.
    """

    def __init__(self, path: Path) -> None:
        """Opens and checks a dataset.

        Raises:
            InputError: It is missing, not a dataset, of another schema version, incomplete,
                or inconsistent.
        """
        self.path = path
        self._file = _open(path)
        try:
            self.header = read_header(self._file.attrs)
            self._inputs = _Sequences.load(self._file, "inputs")
            self._targets = _Sequences.load(self._file, "targets")
            self.task_ids: npt.NDArray[np.int32] = _dataset(self._file, "task_ids", "i")[:]
            self.task_names = strings(_dataset(self._file, "task_names", "S")[:])
            self._check_tasks_and_targets()
        except (ValueError, TypeError, OSError, KeyError, RuntimeError) as error:
            self._file.close()
            raise InputError(f"{path}: damaged dataset: {error}; {_AGAIN}") from None

    def __enter__(self) -> Self:
        """Leaves the file open until the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    def close(self) -> None:
        """Closes the file; lengths and tasks stay usable."""
        self._file.close()

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.task_ids)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.header.vocab_size

    @property
    def eos_id(self) -> int:
        """The token that ends every target."""
        return self.header.eos_id

    @property
    def input_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sample's input, shape (n_samples,)."""
        return np.diff(self._inputs.offsets)

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sample's target, >= 1, shape (n_samples,)."""
        return np.diff(self._targets.offsets)

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[TokenArray, TokenArray]:
        """Reads the first tokens of a sample's input and target, and no others.

        Args:
            sample_id: Index of the sample.
            input_tokens: Tokens of the input to read, at most its length.
            target_tokens: Tokens of the target to read, at most its length.

        Returns:
            Input, shape (input_tokens,), and target, shape (target_tokens,).

        Raises:
            InputError: The file can no longer be read.
        """
        try:
            return (
                self._inputs.read(sample_id, input_tokens),
                self._targets.read(sample_id, target_tokens),
            )
        except (OSError, RuntimeError) as error:
            raise InputError(f"{self.path}: cannot read sample {sample_id}: {error}") from None

    def _check_tasks_and_targets(self) -> None:
        n_samples = len(self.task_ids)
        for group, sequences in (("inputs", self._inputs), ("targets", self._targets)):
            if len(sequences.offsets) != n_samples + 1:
                raise InputError(
                    f"'{group}/offsets' holds {len(sequences.offsets)} numbers, but 'task_ids' "
                    f"has {n_samples} samples, which need {n_samples + 1}"
                )
        if n_samples and not 0 <= self.task_ids.min() <= self.task_ids.max() < len(self.task_names):
            raise InputError(f"'task_ids' points past the {len(self.task_names)} 'task_names'")
        if n_samples and self.target_lengths.min() < 1:
            raise InputError(f"sample {self.target_lengths.argmin()} has an empty target")


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Sequence i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: h5py.Dataset
    offsets: npt.NDArray[np.int64]

    @classmethod
    def load(cls, file: h5py.File, group: str) -> Self:
        tokens = _dataset(file, f"{group}/tokens", "u")
        offsets = _dataset(file, f"{group}/offsets", "i")[:]
        if len(offsets) == 0 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
            raise InputError(f"'{group}/offsets' does not rise from 0")
        if offsets[-1] != len(tokens):
            raise InputError(
                f"'{group}/offsets' ends at {offsets[-1]}, but '{group}/tokens' holds {len(tokens)}"
            )
        return cls(tokens, offsets)

    def read(self, i: int, n_tokens: int) -> TokenArray:
        start, end = self.offsets[i], self.offsets[i + 1]
        if not 0 <= n_tokens <= end - start:
            raise ValueError(f"sequence {i} has {end - start} tokens, not {n_tokens}")
        found: TokenArray = self.tokens[start : start + n_tokens]
        return found


def _open(path: Path) -> h5py.File:
    if not path.is_file():
        raise InputError(f"{path}: no such dataset; make it with dynapipe-hpc preprocess")
    try:
        # Without a chunk cache HDF5 reads just the bytes asked for, not the chunk around them.
        file = h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except OSError as error:
        raise InputError(f"{path}: not a complete HDF5 file ({error}); {_AGAIN}") from None
    try:
        _check_format(path, file)
    except InputError:
        file.close()
        raise
    return file


def _check_format(path: Path, file: h5py.File) -> None:
    if file.attrs.get("format") != FORMAT.encode():
        raise InputError(f"{path}: an HDF5 file, but not a dataset; {_AGAIN}")
    version = file.attrs.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: has schema version {version}, but this dynapipe-hpc reads "
            f"{SCHEMA_VERSION}; {_AGAIN}, or use the dynapipe-hpc that made it"
        )


def _dataset(file: h5py.File, name: str, kind: str) -> h5py.Dataset:
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"'{name}' is missing")
    if found.ndim != 1 or found.dtype.kind != kind:
        raise InputError(f"'{name}' has shape {found.shape} and type {found.dtype}")
    return found
