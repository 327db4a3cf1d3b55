"""Log-probabilities of answers by a reference model, in a file beside the dataset or in the run.

See docs/formats.md, "Reference log-probabilities".
"""

import json
import os
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input

FORMAT, VERSION = "dynapipe-hpc reference", 1
_ORDER = "<f8"
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """A file of log-probabilities, which grows while they are computed."""

    path: Path
    fingerprint: str  # hash of the reference model, the samples and how they are used
    n_samples: int
    shared: Path | None = None  # read as long as there is none at `path`

    @classmethod
    def from_dataset(cls, dataset: Path, fingerprint: str, n_samples: int) -> Self:
        """The file of a dataset, whose name begins with that of the dataset."""
        name = f"{dataset.name}.{fingerprint[:16]}.reference"
        return cls(dataset.with_name(name), fingerprint, n_samples)

    def or_in_run(self, output: Path) -> Self:
        """The file in a run folder, if it is there or the folder of this one is not writable."""
        path = output / self.path.name
        if _is_writable(self.path.parent) and not path.exists():
            return self
        return replace(self, path=path, shared=self.path)

    @property
    def source(self) -> Path:
        """The file that is read."""
        return self.shared if self.shared and not self.path.exists() else self.path

    @property
    def place(self) -> str:
        """Name of the file in messages; a run folder may not be known, or not exist yet."""
        return str(self.path) if _is_writable(self.path.parent) else "the run folder"

    def read(self) -> FloatArray:
        """Log-probabilities known so far, shape (n_samples, 2); NaN for samples that are not."""
        source = self.source
        if not source.exists():
            return np.full((self.n_samples, 2), np.nan)
        line, _, data = read_input(source).partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if header != self._header(data) or len(data) != 16 * self.n_samples:
            raise InputError(
                f"{source}: is damaged, or of other samples or another model; remove it, and it "
                "is computed again"
            )
        return np.frombuffer(data, _ORDER).astype(np.float64).reshape(-1, 2)

    def write(self, log_probs: FloatArray) -> None:
        """Replaces the file."""
        data = log_probs.astype(_ORDER).tobytes()
        line = json.dumps(self._header(data)).encode()
        with atomic_write(self.path) as temporary:
            temporary.write_bytes(line + b"\n" + data)

    def _header(self, data: bytes) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "n_samples": self.n_samples,
            "checksum": blake2b(data, digest_size=16).hexdigest(),
        }


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
