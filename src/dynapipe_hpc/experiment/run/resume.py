"""The point where a run continues: the newest undamaged checkpoint of its folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.dataset.long_samples import are_long
from dynapipe_hpc.data.errors import InputError, print_error
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.training.checkpoint.folder import (
    CheckpointFolder,
    DamagedError,
    Description,
    Facts,
    new_checksum,
)
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.huggingface.origin import HASH_FACT

FIXED_TRAINING = ("objective", "seed", "dtype", "loss_weighting")
_FREE_DATA = {"dataset", "mixture", "check_tokenizer"}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    path: Path
    description: Description


def facts_of_run(files: Experiment) -> Facts:
    """Facts of configuration, dataset and origin that must not change when training continues."""
    config, dataset = files.config, files.dataset
    checksum = new_checksum()
    numbers = [dataset.input_lengths, dataset.target_lengths, dataset.task_ids]
    if dataset.header.has_pairs:
        numbers.append(dataset.rejected_lengths)
    for each in numbers:
        checksum.update(np.ascontiguousarray(each, np.int64).data)
    checksum.update(f"{dataset.header.vocab_size} {dataset.header.eos_id}".encode())
    for file in dataset.files:
        checksum.update(f"{file.header.start_id}".encode())
    if len(dataset.spans.starts):
        for bounds in (dataset.spans.offsets, dataset.spans.starts, dataset.spans.ends):
            checksum.update(np.ascontiguousarray(bounds, np.int64).data)
    facts = {
        **facts_of(config),
        "the hash of the samples of data.dataset": checksum.hexdigest(),
    }
    checksum.update("".join(file.content_sha256 for file in dataset.files).encode())
    facts["the hash of the tokens of data.dataset"] = checksum.hexdigest()
    # No checkpoint has the origin's weights (for adapters) or log-probabilities (for preferences).
    is_needed = config.model.lora is not None or config.training.preference_loss is not None
    if is_needed and files.origin:
        facts[HASH_FACT] = files.weights_hash
    has_turns = len(dataset.spans.starts) or dataset.header.has_pairs
    if facts["data.long_samples"] == "cut_input" and not has_turns:
        facts["data.long_samples"] = "cut_input_end"  # the same without conversations and pairs
    if not are_long(dataset, config.data).any():
        del facts["data.long_samples"]  # without long samples it has no effect
    return facts


def facts_of(config: ExperimentConfig) -> dict[str, str | int | float | bool | None]:
    """Values that must not change when training continues, by key of the configuration.

    Cluster, planner, number of iterations and optimizer settings may change, but not the number of
    shards if they draw frozen weights at random.
    """
    training = config.training.model_dump(mode="json")
    data = config.data.model_dump(mode="json", exclude=_FREE_DATA)
    for i, mixed in enumerate(config.data.mixture or ()):
        data |= {f"mixture.{i}.weight": mixed.weight, f"mixture.{i}.epochs": mixed.epochs}
    # Weights beside adapters are in no checkpoint; another number of shards draws other weights.
    draws = config.model.lora and config.model.init_from is None
    loss = config.training.preference_loss
    settings = loss._asdict() if loss else {}
    drawn = {"cluster.n_shards": config.cluster.n_shards} if draws else {}
    return {
        **{f"data.{key}": value for key, value in data.items()},
        **{f"model.{key}": value for key, value in config.model.sizes.items()},
        **{f"training.{key}": training[key] for key in FIXED_TRAINING},
        **{f"training.preferences.{key}": value for key, value in settings.items()},
        "evaluation.held_out": config.held_out,
        **drawn,
    }


def find_resume_point(job: Job, folder: CheckpointFolder, facts: Facts) -> ResumePoint | None:
    """The newest undamaged checkpoint; all ranks share the reading.

    It must have these `facts`, see `facts_of_run`. Unfinished checkpoints are removed, and damaged
    ones set aside if there is an undamaged one.

    Raises `SystemExit`: The checkpoint belongs to another experiment, all are damaged, or one
    cannot be read now or by this version; the first rank has said so.
    """

    def find() -> list[Path]:
        for left in folder.clear():
            print_error(f"{left}: incomplete checkpoint removed")
        return folder.complete()

    damaged: dict[Path, str] = {}
    for path in job.on_first(find):
        damage = ""
        with job.fail_together():
            try:
                description = check_share(path, job)
            except DamagedError as error:
                damage = str(error)
        if damages := [each for each in job.comm.allgather(damage) if each]:
            damaged[path] = damages[0]
            continue
        with job.fail_together():
            check_facts(path, description.facts, facts)
            for other, problem in damaged.items() if job.is_first else ():
                print_error(f"{problem}; it is skipped, and kept as {folder.set_aside(other)}")
        return ResumePoint(path, description)
    if damaged:
        with job.fail_together():
            raise InputError(
                f"{folder.path}: all checkpoints are damaged ({len(damaged)}), for example "
                f"{next(iter(damaged.values()))}; restore an undamaged one, or name another run "
                "folder"
            )
    return None


def n_repeatable(output: Path, config: ExperimentConfig) -> int:
    """Limit of the iterations that a run without a checkpoint may have done and still start over.

    A run of the same experiment that writes checkpoints completes the first one before it begins
    the second, after twice `checkpoint.every` iterations; until then it may have nothing to
    continue from.
    """
    try:
        earlier = load_config(output / "config.toml")
    except InputError:
        return 0
    same = facts_of(earlier) == facts_of(config) and earlier.data.paths == config.data.paths
    return 2 * earlier.checkpoint.every if same else 0


def facts_of_start(facts: Facts, point: ResumePoint | None) -> Facts:
    """The facts of a run that starts at `point`, with the initial model that `point` recorded."""
    began_with = point.description.facts.get(HASH_FACT) if point else None
    return {**facts, HASH_FACT: began_with} if began_with else facts


def check_share(path: Path, job: Job) -> Description:
    description = Description.read(path)
    for rank, checksum in enumerate(description.part_checksums):
        if rank % job.size == job.rank:
            check_part(path, rank, checksum)
    return description


def check_facts(path: Path, stored: Facts, current: Facts) -> None:
    """Refuses a checkpoint of another experiment."""
    # Stored facts first: what is not stored may differ as a consequence of one of them.
    for key in {**stored, **current}:
        # Only adapters need the weights again; preferences have a file.
        is_kept = key == HASH_FACT and current.get("model.lora") is None
        if not is_kept and current.get(key) != stored.get(key):
            raise InputError(
                f"{path}: was written with {key} = {stored.get(key)!r}, but now it is "
                f"{current.get(key)!r}; restore the old value, or name another run folder"
            )
