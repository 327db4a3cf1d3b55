"""The samples that a run evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dynapipe_hpc.data.dataset.held_out import are_held_out, evaluated_samples, in_batches
from dynapipe_hpc.data.dataset.long_samples import UsedTokens, used_of
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.evaluation_config import EvaluationConfig

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSamples:
    """Samples of every evaluation of a run, in batches that are planned one by one."""

    dataset: Dataset
    batches: tuple[tuple[Sample, ...], ...]
    n_available: int

    @property
    def samples(self) -> list[Sample]:
        return [sample for batch in self.batches for sample in batch]

    def describe(self, config: EvaluationConfig) -> str:
        """Number of samples and tokens, where they come from, and when they are evaluated."""
        samples = self.samples
        tokens = sum(sample.tokens for sample in samples)
        source = (
            f"of '{config.dataset}'" if config.dataset else f"held out (share {config.held_out:g})"
        )
        between = f", every {config.every:,} iterations" if config.every else ""
        return (
            f"{len(samples):,} of {self.n_available:,} samples {source}, {tokens:,} tokens in "
            f"{len(self.batches):,} batches, before the first iteration{between} and at the end"
        )


def evaluation_samples(
    config: ExperimentConfig,
    evaluation: EvaluationConfig,
    dataset: Dataset,
    used: UsedTokens,
    *,
    n_iterations: int,
) -> EvaluationSamples:
    """Chooses the samples that a run evaluates."""
    if evaluation.held_out is not None:
        ids = used.kept[are_held_out(used.kept, evaluation.held_out)]
    else:
        data = config.data.alone(str(evaluation.dataset))
        dataset = _other_dataset(data.paths[0], dataset)
        used = used_of(dataset, data)
        ids = used.kept
    n_replicas = config.cluster.n_replicas
    if len(ids) < n_replicas:
        raise InputError(
            f"evaluation: there are {len(ids):,} samples for cluster.n_replicas = {n_replicas}, "
            "each of which needs one; raise evaluation.held_out, or name a larger "
            "evaluation.dataset"
        )
    most_tokens = evaluation.most_tokens(n_iterations, config.data.tokens_per_batch)
    samples = evaluated_samples(
        used, ids, np.asarray(dataset.task_ids), most_tokens=most_tokens, n_least=n_replicas
    )
    batches = in_batches(samples, config.data.tokens_per_batch, n_replicas)
    return EvaluationSamples(dataset, tuple(map(tuple, batches)), len(ids))


def without_held_out(used: UsedTokens, held_out: float, dataset: Dataset) -> UsedTokens:
    """The samples that are used without a share that is held out."""
    kept = used.kept[~are_held_out(used.kept, held_out)]
    end = 0
    for file in dataset.files:
        start, end = end, end + file.n_samples
        if not ((start <= kept) & (kept < end)).any():
            raise InputError(
                f"evaluation.held_out = {held_out}: leaves none of {file.n_samples:,} samples of "
                f"'{file.path}' to train on; lower it"
            )
    return used._replace(kept=kept)


def _other_dataset(path: str, trained: Dataset) -> Dataset:
    from dynapipe_hpc.data.dataset.dataset_file import DatasetFile

    dataset = DatasetFile(Path(path))
    theirs, ours = dataset.header, trained.files[0].header
    for what in ("tokenizer_sha256", "vocab_size", "eos_id", "start_id", "has_pairs"):
        if getattr(theirs, what) != getattr(ours, what):
            raise InputError(
                f"evaluation.dataset = '{path}': has {what} = {getattr(theirs, what)} (tokenizer "
                f"{theirs.tokenizer_name}), but what is trained on has {getattr(ours, what)} "
                f"(tokenizer {ours.tokenizer_name}); make both in the same way"
            )
    return dataset
