"""The reference of preferences: log-probabilities of answers by the model before training."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.evaluation_batches import in_batches
from dynapipe_hpc.data.dataset.joined_datasets import Dataset
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.assemble import loader_of
from dynapipe_hpc.experiment.run.forward_passes import FloatArray, run_forward
from dynapipe_hpc.experiment.run.plan_evaluation import plan_forward
from dynapipe_hpc.experiment.run.reference_file import ReferenceFile
from dynapipe_hpc.experiment.run.training_rank import TrainingRank
from dynapipe_hpc.training.huggingface.hash_of_weights import hash_of_weights
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.preferences import PreferenceLoss

BATCHES_PER_RANK = 4
"""Batches that a rank plans before they are executed; then what is known is written."""


class References(NamedTuple):
    """Log-probabilities of answers by the model before training, by sample id.

    Attributes:
        trained: Table of the dataset that is trained on.
        evaluated: Table of the dataset that is evaluated; None if nothing is.
    """

    trained: FloatArray
    evaluated: FloatArray | None


def train_preferences(
    rank: TrainingRank, experiment: Experiment, *, begins: bool
) -> References | int | None:
    """Lets the stage of this rank train on preference pairs, if the run does; all ranks together.

    Args:
        rank: This rank, whose weights are those of the reference if the run begins.
        experiment: The experiment.
        begins: Whether the run begins, rather than continues.

    Returns:
        The reference; None if tokens are trained; or the signal if the run was asked to stop
        meanwhile.

    Raises:
        SystemExit: As for `find_reference`.
    """
    config = experiment.config.training.preference_loss
    if config is None:
        return None
    used, dataset = experiment.files.used, experiment.dataset
    samples = [used.sample(i, int(dataset.task_ids[i])) for i in used.kept.tolist()]
    trained = find_reference(rank, experiment, dataset, samples, begins=begins)
    if isinstance(trained, int):
        return trained
    evaluation, evaluated = experiment.evaluation, None
    if evaluation is not None:
        evaluated = trained
        if evaluation.dataset is not dataset:
            found = find_reference(
                rank, experiment, evaluation.dataset, evaluation.samples, begins=begins
            )
            if isinstance(found, int):
                return found
            evaluated = found
    objective = PreferenceLoss.from_table(config, trained, rank.worker.device)
    rank.worker.stage.train_preferences(objective)
    return References(trained, evaluated)


def find_reference(
    rank: TrainingRank,
    experiment: Experiment,
    dataset: Dataset,
    samples: Sequence[Sample],
    *,
    begins: bool,
) -> FloatArray | int:
    """Log-probabilities of the answers of samples by the model before training; all together.

    They are read from the file beside the dataset. What is missing there is computed by plans of
    forward passes and written to it, so that an interrupted run continues from there.

    Args:
        rank: This rank, whose weights are those of the reference if the run begins.
        experiment: The experiment.
        dataset: Dataset with the samples.
        samples: The samples.
        begins: Whether the run begins, rather than continues.

    Returns:
        Shape (samples of the dataset, 2), NaN for others; or the signal if the run was asked to
        stop meanwhile.

    Raises:
        SystemExit: The file cannot be used, or a batch cannot be planned; the first rank has said
            why.
    """
    job, config = rank.job, experiment.config
    known = np.empty(0)
    with job.fail_together():
        file = reference_file(config, dataset, samples)
        if job.is_first:
            known = file.read()
    known = job.broadcast(known)
    least = config.cluster.n_replicas
    batches = in_batches(samples, config.data.tokens_per_batch, least)
    missing = [batch for batch in batches if np.isnan(known[_ids(batch)]).any()]
    if not missing:
        return known
    with job.fail_together():
        if not begins:
            raise InputError(
                f"{file.path}: lacks log-probabilities by the model before training, which this "
                "run no longer has; restore the file, or name another run folder; if "
                "model.init_from is a run that has gone on since, name the checkpoint that "
                "config.toml in this run's folder has"
            )
    started_s, n_before = time.perf_counter(), len(batches) - len(missing)
    if job.is_first:
        print(escaped(f"reference: {len(missing):,} batches, into {file.path}"), flush=True)
    loader = loader_of(dataset, config, rank.worker.collate)
    at_once = BATCHES_PER_RANK * job.size
    for first in range(0, len(missing), at_once):
        group = missing[first : first + at_once]
        together = [sample for batch in group for sample in batch]
        plans = plan_forward(job, experiment, group, "reference")
        loader.start_iteration(together)
        found = run_forward(rank, loader, together, plans, n_done=0)
        if isinstance(found, int):
            return found
        known[_ids(together)] = found.T
        with job.fail_together():
            if job.is_first:
                file.write(known)
    if job.is_first:
        took_s = time.perf_counter() - started_s
        before = f", {n_before:,} before" if n_before else ""
        print(f"reference: {len(samples):,} pairs in {took_s:,.1f} s{before}", flush=True)
    return known


def reference_file(
    config: ExperimentConfig, dataset: Dataset, samples: Sequence[Sample]
) -> ReferenceFile:
    """The file with the log-probabilities of samples by the model that a run begins with.

    Raises:
        InputError: The model cannot be used.
    """
    origin = find_origin(Path(str(config.model.init_from)))
    hasher = hashlib.sha256(hash_of_weights(origin).encode())
    hasher.update(repr(_settings(config.data, config, dataset)).encode())
    numbers = [(s.sample_id, s.input_tokens, s.target_tokens, s.rejected_tokens) for s in samples]
    hasher.update(np.array(numbers, "<i8").tobytes())
    n_samples = len(dataset.task_ids)
    return ReferenceFile.from_dataset(dataset.files[0].path, hasher.hexdigest(), n_samples)


def _settings(data: DataConfig, config: ExperimentConfig, dataset: Dataset) -> list[object]:
    """Settings that change log-probabilities, beside weights and numbers of tokens."""
    contents = [part.content_sha256 for file in dataset.files for part in file.parts]
    sizes = {k: v for k, v in config.model.sizes.items() if k != "lora"}
    return [contents, data.long_samples, config.training.dtype, sorted(sizes.items(), key=str)]


def _ids(samples: Sequence[Sample]) -> list[int]:
    return [sample.sample_id for sample in samples]
