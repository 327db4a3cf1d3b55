"""The forward pass that gives a run its reference: the pairs, their file, and how long it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.evaluation_batches import in_batches
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.reference_file import ReferenceFile

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset

MAX_PLANNED = 8
"""Batches that are planned, to estimate the time of all."""


class ReferencePass(NamedTuple):
    """The reference of preference pairs of one dataset."""

    dataset: Dataset
    batches: Sequence[Sequence[Sample]]
    file: ReferenceFile

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return sum(map(len, self.batches))

    def missing(self, known: npt.NDArray[np.float64]) -> list[Sequence[Sample]]:
        """Batches of pairs of which some have no log-probabilities in what the file holds."""
        return [batch for batch in self.batches if np.isnan(known[ids_of(batch)]).any()]

    def lack_error(self) -> InputError:
        """The error that a run cannot continue, as the file is not complete."""
        copied = ", and copy it from there" if self.file.shared else ""
        return InputError(
            f"{self.file.path}: lacks log-probabilities by the model before training, which this "
            "run no longer has; restore the file, or start the same configuration in another run "
            f"folder, which makes it before its first iteration{copied}"
        )


def reference_passes(
    files: Experiment, weights_hash: str, output: Path | None
) -> list[ReferencePass]:
    """References of the dataset that is trained on, and of the one evaluated if that is another."""
    config, used, dataset = files.config, files.used, files.dataset
    samples = [used.sample(i, int(dataset.task_ids[i])) for i in used.kept.tolist()]
    batches = in_batches(samples, config.data.tokens_per_batch, config.cluster.n_replicas)
    file = _file(config, weights_hash, dataset, samples)
    passes = [ReferencePass(dataset, batches, file)]
    evaluation = files.evaluation
    if evaluation is not None and evaluation.dataset is not dataset:
        file = _file(config, weights_hash, evaluation.dataset, evaluation.samples)
        passes.append(ReferencePass(evaluation.dataset, evaluation.batches, file))
    if output is None:
        return passes
    return [each._replace(file=each.file.or_in_run(output)) for each in passes]


def describe_reference(experiment: Experiment, output: Path | None) -> str:
    """Pairs whose reference is still to be computed, and about how long that takes."""
    passes = reference_passes(experiment, experiment.weights_hash, output)
    return "; ".join(_describe(experiment, each) for each in passes)


def ids_of(samples: Sequence[Sample]) -> list[int]:
    """Ids of samples."""
    return [sample.sample_id for sample in samples]


def _describe(experiment: Experiment, reference: ReferencePass) -> str:
    missing = reference.missing(reference.file.read())
    n_pairs = reference.n_pairs
    if not missing:
        return f"of all {n_pairs:,} pairs, in {reference.file.source}"
    planned = missing[:: -(-len(missing) // MAX_PLANNED)]
    planner = experiment.forward_planner
    planned_ms = sum(planner.choose(batch).best.makespan_ms for batch in planned)
    about_s = planned_ms / 1e3 * _n_tokens(missing) / _n_tokens(planned)
    return (
        f"{sum(map(len, missing)):,} of {n_pairs:,} pairs are computed before the first "
        f"iteration, in about {about_s:,.1f} s, into {reference.file.place}"
    )


def _n_tokens(batches: Sequence[Sequence[Sample]]) -> int:
    return sum(sample.tokens for batch in batches for sample in batch)


def _file(
    config: ExperimentConfig, weights_hash: str, dataset: Dataset, samples: Sequence[Sample]
) -> ReferenceFile:
    hasher = hashlib.sha256(weights_hash.encode())
    hasher.update(repr(_settings(config, dataset)).encode())
    numbers = [(s.sample_id, s.input_tokens, s.target_tokens, s.rejected_tokens) for s in samples]
    hasher.update(np.array(numbers, "<i8").tobytes())
    n_samples = len(dataset.task_ids)
    return ReferenceFile.from_dataset(dataset.files[0].path, hasher.hexdigest(), n_samples)


def _settings(config: ExperimentConfig, dataset: Dataset) -> list[object]:
    """Settings that change log-probabilities, beside weights and numbers of tokens."""
    contents = [part.content_sha256 for file in dataset.files for part in file.parts]
    sizes = {k: v for k, v in config.model.sizes.items() if k != "lora"}
    return [
        contents,
        config.data.long_samples,
        config.training.dtype,
        sorted(sizes.items(), key=str),
    ]
