"""The folder of a run that this job writes: its lock, where the run starts, records and end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.explain_run import recorder_of
from dynapipe_hpc.experiment.run.loss_history import LossHistory, is_complete
from dynapipe_hpc.experiment.run.plan_ahead import QuietPeriod
from dynapipe_hpc.experiment.run.resume import (
    facts_of_run,
    facts_of_start,
    find_resume_point,
    together,
)
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import RunLock, locked
from dynapipe_hpc.experiment.watch.hang_files import HANG
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.run_folder import write_mixture
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.huggingface.origin import HASH_FACT
from dynapipe_hpc.training.learning_rate import describe_longer


class OpenRun:
    """A run folder that is locked. All ranks call every method alike; the first writes.

    `facts` must be the same when a checkpoint is loaded; `point` is the checkpoint to continue
    from, None for a run from the beginning; `history` has the losses of earlier evaluations, None
    if the run does not evaluate; `log` is that of the first rank while it writes `records`.
    """

    def __init__(self, job: Job, experiment: Experiment, output: Path, lock: RunLock) -> None:
        """Finds where the run starts; the folder need not exist."""
        config = experiment.config
        self.output, self.lock, self.quiet_period = output, lock, QuietPeriod()
        self.checkpoints = CheckpointFolder(output / "checkpoints", config.checkpoint)
        self.log: RunLog | None = None
        self._job, self._experiment = job, experiment
        with job.fail_together():
            facts = together(job, lambda: facts_of_run(experiment))
            self.point = find_resume_point(job, self.checkpoints, facts)
            n_done = self.point.description.n_done if self.point else 0
            self.history = together(job, lambda: self._read_history(n_done))
        self.facts = facts_of_start(facts, self.point)
        if self.history and config.checkpoint.keep_best:
            self.checkpoints.best = self.history.best
        self.iterations = range(n_done, config.training.n_iterations)

    def _read_history(self, n_done: int) -> LossHistory | None:
        evaluation = self._experiment.config.evaluation
        if evaluation is None or not self._job.is_first:
            return None
        return LossHistory.read(self.output, evaluation, n_done)

    @property
    def weights_hash(self) -> str:
        """Hash of the weights that the run began with, if it trains adapters or on preferences."""
        return str(self.facts[HASH_FACT])

    @property
    def is_complete(self) -> bool:
        """Whether the run has nothing left to do."""
        return is_complete(self.iterations.start, self.iterations.stop, self.history)

    @contextmanager
    def records(self, device: dict[str, str]) -> Iterator[None]:
        """Creates the folder or continues it, and writes into it until the block ends."""
        job, experiment = self._job, self._experiment
        with job.fail_together():
            if job.is_first:
                self.log = RunLog(
                    experiment.config,
                    experiment.placement,
                    self.output,
                    machine=machine_facts(job.size) | device,
                    n_done=self.iterations.start,
                    lock=self.lock,
                    quiet_period=self.quiet_period,
                )
                write_mixture(self.output, experiment.mixture)
                shutil.rmtree(self.output / HANG, ignore_errors=True)
        # From here on there is a folder in which to record how the run ends.
        job.ending.recorder = recorder_of(self.output)
        try:
            yield
        finally:
            if self.log:
                self.log.close()

    def describe_end(self) -> str:
        """Message on why a run has come to its end."""
        if self.history and self.history.is_over:
            return f"training has ended early: {self.history.describe()}"
        return "all iterations are done"

    def describe_complete(self) -> str:
        """Message on a run that has nothing left to do."""
        training = self._experiment.config.training
        if self.history and self.history.is_over:
            text = f"{self.describe_end()}; to continue, raise evaluation.patience"
        else:
            text = (
                f"all {training.n_iterations} iterations are done; to continue, raise "
                f"training.iterations: {describe_longer(training)}"
            )
        return escaped(f"{self.output}: {text}")


@contextmanager
def open_run(job: Job, experiment: Experiment, output: Path) -> Iterator[OpenRun]:
    """Locks a run folder, and finds where the run starts; all ranks together."""
    with locked(job, output) as lock:
        yield OpenRun(job, experiment, output, lock)
