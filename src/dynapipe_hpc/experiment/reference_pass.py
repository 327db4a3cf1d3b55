"""The reference of preferences: log-probabilities of answers, their file, and the missing ones.

See docs/formats.md, "Reference log-probabilities".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.sampler import in_batches
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import Dataset

FORMAT, VERSION = "dynapipe-hpc reference", 1
_ORDER = "<f8"
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """A file of log-probabilities, which grows while they are computed."""

    path: Path
    fingerprint: str  # hash of the reference model, the samples and how they are used
    n_samples: int

    def read(self) -> FloatArray:
        """Log-probabilities known so far, shape (n_samples, 2); NaN where not yet known."""
        if not self.path.exists():
            return np.full((self.n_samples, 2), np.nan)
        line, _, data = read_input(self.path).partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if header != self._header(data) or len(data) != 16 * self.n_samples:
            raise InputError(
                f"{self.path}: is damaged, or belongs to other data or another model; remove it, "
                "and it is computed again"
            )
        return np.frombuffer(data, _ORDER).astype(np.float64).reshape(-1, 2)

    def write(self, log_probs: FloatArray) -> None:
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


class ReferencePass(NamedTuple):
    dataset: Dataset
    batches: Sequence[Sequence[Sample]]
    file: ReferenceFile

    @property
    def n_pairs(self) -> int:
        return sum(map(len, self.batches))

    def missing(self, known: npt.NDArray[np.float64]) -> list[Sequence[Sample]]:
        """Batches in which some pairs have no log-probabilities among the known ones."""
        return [batch for batch in self.batches if np.isnan(known[ids_of(batch)]).any()]

    def lack_error(self) -> InputError:
        """The error that a run cannot continue, as the file is not complete."""
        return InputError(
            f"{self.file.path}: lacks log-probabilities by the model before training, which this "
            "run no longer has; restore the file, or start the same configuration in another run "
            "folder, which makes the file before its first iteration, and copy it from there"
        )


def reference_passes(files: Experiment, weights_hash: str, output: Path) -> list[ReferencePass]:
    """References of the training dataset, and of the evaluated dataset if that is another one."""
    config, used, dataset = files.config, files.used, files.dataset
    samples = used.samples(used.kept, dataset.task_ids)
    batches = in_batches(samples, config.data.tokens_per_batch, config.cluster.n_replicas)
    file = _file(config, weights_hash, dataset, samples, output=output)
    passes = [ReferencePass(dataset, batches, file)]
    evaluation = files.evaluation
    if evaluation is not None and evaluation.dataset is not dataset:
        file = _file(config, weights_hash, evaluation.dataset, evaluation.samples, output=output)
        passes.append(ReferencePass(evaluation.dataset, evaluation.batches, file))
    return passes


def ids_of(samples: Sequence[Sample]) -> list[int]:
    return [sample.sample_id for sample in samples]


def _file(
    config: ExperimentConfig,
    weights_hash: str,
    dataset: Dataset,
    samples: Sequence[Sample],
    *,
    output: Path,
) -> ReferenceFile:
    hasher = hashlib.sha256(weights_hash.encode())
    hasher.update(repr(_settings(config, dataset)).encode())
    numbers = [(s.sample_id, s.input_tokens, s.target_tokens, s.rejected_tokens) for s in samples]
    hasher.update(np.array(numbers, "<i8").tobytes())
    fingerprint = hasher.hexdigest()
    path = output / f"{dataset.files[0].path.name}.{fingerprint[:16]}.reference"
    return ReferenceFile(path, fingerprint, len(dataset.task_ids))


def _settings(config: ExperimentConfig, dataset: Dataset) -> list[object]:
    contents = [file.content_sha256 for file in dataset.files]
    sizes = {k: v for k, v in config.model.sizes.items() if k != "lora"}
    return [
        contents,
        config.data.long_samples,
        config.training.dtype,
        sorted(sizes.items(), key=str),
    ]
