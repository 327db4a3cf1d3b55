"""The parts of a rank that execute plans, with the weights that a run starts with."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.rank.assemble import Worker, build_worker
from dynapipe_hpc.experiment.rank.devices import RankDevice
from dynapipe_hpc.experiment.run.resume import ResumePoint, check_share, together
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.training.checkpoint.read_parts import read_parts
from dynapipe_hpc.training.checkpoint.state import TrainingState
from dynapipe_hpc.training.huggingface.read_weights import WEIGHT, open_weights
from dynapipe_hpc.training.huggingface.token_ids import write_token_ids
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files


def build_run_worker(
    job: Job, experiment: Experiment, output: Path, device: RankDevice, *, point: ResumePoint | None
) -> Worker:
    """Builds the stage of this rank, and restores its state; all ranks together.

    Args:
        job: The ranks.
        experiment: The experiment.
        output: The run folder.
        device: Device of this rank.
        point: Checkpoint to continue from; None for a run from the beginning.
    """
    config, dataset = experiment.config, experiment.dataset
    worker = build_worker(experiment, job, device)
    if point:
        _restore(job, point, worker.state)
    _warm_start(job, experiment.files, worker.state, output, resumed=point is not None)
    with job.fail_together():
        if job.is_first:
            # After the warm start: where that copied the files of a model, its ids are added to.
            write_token_ids(output, config.model, dataset.start_id, dataset.end_ids)
    return worker


def _restore(job: Job, point: ResumePoint, state: TrainingState) -> None:
    """Overwrites the state of training with a checkpoint; all ranks together."""
    with job.fail_together():
        read_parts(point.path, len(point.description.part_checksums), state.to_restore())
    state.resume(point.description.counters)


def _warm_start(
    job: Job, files: ExperimentFiles, state: TrainingState, output: Path, *, resumed: bool
) -> None:
    """Overwrites weights with those of `model.init_from`, if it names a model; all ranks together.

    Every rank reads its own part only. The small files of Hugging Face that belong to the model
    are copied into the run folder, from where checkpoints take them.

    Args:
        job: The ranks.
        files: Files of the experiment, of which the model is one.
        state: State of training on this rank.
        output: The run folder.
        resumed: Whether the run has been resumed from a checkpoint of its own, which lacks only
            weights that are not trained.

    Raises:
        SystemExit: The model cannot be used; the first rank has said why.
    """
    with_optimizer = files.config.training.init_optimizer and not resumed
    parts = state.frozen()
    if not resumed:
        parts += [p for p in state.to_restore() if with_optimizer or p.name.startswith(WEIGHT)]
    if resumed and not parts:
        return
    with job.fail_together():
        origin = files.origin
    if origin is None:
        return
    with job.fail_together():
        if origin.description is not None:
            together(job, partial(check_share, origin.folder, job))
        weights = open_weights(origin, files.config.model, compares_copies=job.is_first)
        if any(not part.name.startswith(WEIGHT) and not weights.has(part.name) for part in parts):
            raise InputError(
                f"{origin.folder}: has no state of this optimizer, as no import has, nor a run "
                "with another training.optimizer; leave training.init_optimizer out"
            )
    with job.fail_together():
        if job.is_first and origin.small_files is not None:
            copy_small_files(origin.small_files, output / CARRIED)
        weights.read(parts)
    counters = state.counters
    if with_optimizer and origin.description is not None:
        counters = replace(counters, n_updates=origin.description.counters.n_updates)
    state.resume(counters)
    if job.is_first and not resumed:
        also = " and the state of the optimizer" if with_optimizer else ""
        rows, theirs = files.config.model.max_tokens, origin.shape.max_tokens
        longer = f", with rows of up to {rows:,} tokens, not {theirs:,}" if rows > theirs else ""
        print(escaped(f"{output}: begins with the weights{also} of {origin}{longer}"), flush=True)
