"""Start of a run: at its first iteration, or after those of an earlier start."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.loss_history import LossHistory, is_complete
from dynapipe_hpc.experiment.run.resume import (
    ResumePoint,
    facts_of_run,
    facts_of_start,
    find_resume_point,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.training.checkpoint.description import Facts
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.huggingface.hash_of_weights import FACT
from dynapipe_hpc.training.learning_rate import describe_longer


@dataclass(frozen=True, slots=True)
class RunStart:
    """The point where a run starts.

    Attributes:
        iterations: The iterations that are left, after those that earlier starts have done.
        folder: Folder of the checkpoints.
        facts: Facts that must be the same when a checkpoint is loaded.
        point: Checkpoint to continue from; None for a run from the beginning.
        history: Losses of earlier evaluations; None if the run does not evaluate.
    """

    iterations: range
    folder: CheckpointFolder
    facts: Facts
    point: ResumePoint | None
    history: LossHistory | None

    @property
    def weights_hash(self) -> str:
        """Hash of the weights that the run began with, if it trains adapters or on preferences."""
        return str(self.facts[FACT])

    @property
    def online_costs(self) -> Sequence[Sequence[float]]:
        """State of `OnlineCosts` at this point."""
        return self.point.description.online if self.point else ()

    @property
    def is_complete(self) -> bool:
        """Whether the run has nothing left to do."""
        return is_complete(self.iterations.start, self.iterations.stop, self.history)

    def describe_end(self) -> str:
        """Message on why a run has come to its end."""
        if self.history and self.history.is_over:
            return f"training has ended early: {self.history.describe()}"
        return "all iterations are done"

    def describe_complete(self, output: Path, config: TrainingConfig) -> str:
        """Message on a run that has nothing left to do."""
        if self.history and self.history.is_over:
            return escaped(
                f"{output}: {self.describe_end()}; to continue, raise evaluation.patience"
            )
        return escaped(
            f"{output}: all {config.n_iterations} iterations are done; to continue, raise "
            f"training.iterations: {describe_longer(config)}"
        )


def find_run_start(job: Job, experiment: Experiment, output: Path) -> RunStart:
    """The point where a run starts; all ranks together.

    Args:
        job: The ranks.
        experiment: The experiment.
        output: The run folder, which need not exist.

    Raises:
        SystemExit: A checkpoint or an evaluation cannot be used; the first rank has said why.
    """
    config = experiment.config
    folder = CheckpointFolder(output / "checkpoints", config.checkpoint)
    with job.fail_together():
        facts = facts_of_run(experiment.files)
    point = find_resume_point(job, folder, facts)
    n_done = point.description.n_done if point else 0
    history = _read_history(job, config, output, n_done)
    if history and config.checkpoint.keep_best:
        folder.best = history.best
    iterations = range(n_done, config.training.n_iterations)
    return RunStart(iterations, folder, facts_of_start(facts, point), point, history)


def _read_history(
    job: Job, config: ExperimentConfig, output: Path, n_done: int
) -> LossHistory | None:
    """Losses of earlier evaluations; all ranks together."""
    history = None
    with job.fail_together():
        if job.is_first and config.evaluation is not None:
            history = LossHistory.read(output, config.evaluation, n_done)
    return job.broadcast(history)
