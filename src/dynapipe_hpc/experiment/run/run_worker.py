"""The parts of a rank that execute plans, with the weights that a run starts with."""

from pathlib import Path

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.assemble import Worker, build_worker
from dynapipe_hpc.experiment.rank.devices import RankDevice
from dynapipe_hpc.experiment.run.resume import ResumePoint
from dynapipe_hpc.experiment.run.warm_start import warm_start
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.training.checkpoint.read_parts import read_parts
from dynapipe_hpc.training.checkpoint.state import TrainingState
from dynapipe_hpc.training.huggingface.token_ids import write_token_ids


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
    warm_start(job, experiment.files, worker.state, output, resumed=point is not None)
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
