"""Where a run goes on: at the newest checkpoint of its folder that is whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.source import Source
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.say import say
from dynapipe_hpc.training.checkpoint.description import Description, Facts
from dynapipe_hpc.training.checkpoint.files import DamagedError, new_checksum
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.part_reader import check_tensors
from dynapipe_hpc.training.checkpoint.state import TrainingState
from dynapipe_hpc.training.checkpoint.transfer import read_parts

FIXED_TRAINING = ("seed", "dtype", "loss_weighting")
_BEFORE = {"data.long_samples": "cut_targets"}
"""What held before there was a key for it, which checkpoints of that time do not name."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint to go on from.

    Attributes:
        path: The checkpoint.
        description: What it is of.
    """

    path: Path
    description: Description

    def restore(self, job: Job, state: TrainingState) -> None:
        """Overwrites the state of training; all ranks together.

        Raises:
            SystemExit: The checkpoint does not fit; the first rank has said why.
        """
        with job.agreeing():
            read_parts(self.path, len(self.description.part_checksums), state.to_restore())
        state.resume(self.description.counters)


def facts_of(config: ExperimentConfig) -> dict[str, str | int | float | bool | None]:
    """What must stay as it is when training goes on, by the keys of the configuration.

    Cluster, planner and the number of iterations may change, and how weights are updated.
    """
    training = config.training.model_dump(mode="json")
    data = config.data.model_dump(mode="json", exclude={"dataset", "verify"})
    model = config.model.model_dump(mode="json", exclude={"layers_per_stage"})
    return {
        **{f"data.{key}": value for key, value in data.items()},
        **{f"model.{key}": value for key, value in model.items()},
        **{f"training.{key}": training[key] for key in FIXED_TRAINING},
    }


def samples_of(source: Source) -> Mapping[str, str]:
    """What tells a dataset from others: the lengths and tasks of its samples, and its tokens."""
    dataset, found = source.dataset, new_checksum()
    for numbers in (dataset.input_lengths, dataset.target_lengths, dataset.task_ids):
        found.update(np.ascontiguousarray(numbers, np.int64).data)
    found.update(f"{dataset.vocab_size} {dataset.eos_id}".encode())
    return {"the hash of the samples of data.dataset": found.hexdigest()}


def find_resume_point(job: Job, folder: CheckpointFolder, facts: Facts) -> ResumePoint | None:
    """The newest whole checkpoint; all ranks together, which share the reading.

    What an earlier run left unfinished is removed, and what is damaged is set aside if there is
    a whole one.

    Raises:
        SystemExit: It belongs to another experiment, all are damaged, or one cannot be read now
            or by this version; the first rank has said so.
    """
    with job.agreeing():
        if job.is_first:
            for left in folder.clear():
                say(f"{left}: was never completed, and is removed")
        candidates = folder.complete()
    damaged: dict[Path, str] = {}
    for path in job.broadcast(candidates):
        with job.agreeing():
            problem = _problem(path, job)
        problems = [text for text in job.gather(problem) if text]
        if job.broadcast(not problems):
            with job.agreeing():
                description = Description.read(path)
                _check_facts(path, description.facts, facts)
                for old, problem in damaged.items():
                    say(f"{problem}; it is left out, and kept as {folder.set_aside(old)}")
            return ResumePoint(path, description)
        if job.is_first:
            damaged[path] = problems[0]
    with job.agreeing():
        if damaged:
            raise InputError(
                f"{folder.path}: all checkpoints are damaged ({len(damaged)}), as in "
                f"{next(iter(damaged.values()))}; put back a whole one, or name another run folder"
            )
    return None


def n_repeatable(output: Path, config: ExperimentConfig) -> int:
    """How many iterations of a run without checkpoints are begun again rather than kept.

    A run of the same experiment that was to write checkpoints has one after at most twice as
    many iterations as are between them: one that ended before has nothing to go on from.
    """
    try:
        earlier = load_config(output / "config.toml")
    except InputError:
        return 0
    same = facts_of(earlier) == facts_of(config) and earlier.data.dataset == config.data.dataset
    return 2 * earlier.checkpoint.every if same else 0


def _problem(path: Path, job: Job) -> str:
    """What is damaged of this rank's share of the parts."""
    try:
        description = Description.read(path)
        for rank, checksum in enumerate(description.part_checksums):
            if rank % job.size == job.rank:
                check_part(path, rank, checksum)
        if job.is_first:
            check_tensors(path, len(description.part_checksums))
    except DamagedError as error:
        return str(error)
    return ""


def _check_facts(path: Path, stored: Facts, current: Facts) -> None:
    unnamed = {key: value for key, value in _BEFORE.items() if key in current}
    for key, value in {**unnamed, **stored}.items():
        if current.get(key) != value:
            raise InputError(
                f"{path}: was written with {key} = {value!r}, but now it is "
                f"{current.get(key)!r}; set it back, or name another run folder"
            )
