"""The run folder that this job writes: its lock, where the run starts, records, how it ends."""

import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from dynapipe_hpc.experiment.config import EvaluationConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.resume import facts_of_run, facts_of_start, find_resume_point
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.experiment.watch.rank_status import HANG
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.run_folder import ENDED, evaluations_file, write_mixture
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.learning_rate import describe_longer


class LossHistory:
    """Losses of evaluations by the number of iterations done.

    The evaluation before the first iteration does not count, as training has done nothing yet.
    """

    def __init__(self, patience: int, losses: Iterable[tuple[int, float]] = ()) -> None:
        """Continues earlier evaluations, in ascending order; a `patience` of 0 is no limit."""
        self._patience = patience
        self._losses: dict[int, float] = {}
        self._n_worse = 0
        self.best: int | None = None  # iterations done when the loss was lowest
        for n_done, loss in losses:
            self.add(n_done, loss)

    @classmethod
    def read(cls, output: Path, config: EvaluationConfig, n_done: int) -> Self:
        records = evaluations_file(output).records() if n_done else ()
        losses = ((record.n_done, record.loss) for record in records if record.n_done <= n_done)
        return cls(config.patience, losses)

    def __contains__(self, n_done: int) -> bool:
        return n_done in self._losses

    def add(self, n_done: int, loss: float) -> bool:
        """Adds an evaluation; returns whether it counts and has the lowest loss so far."""
        self._losses[n_done] = loss
        if n_done == 0:
            return False
        lowest = math.inf if self.best is None else self._losses[self.best]
        is_best = loss < lowest
        self.best = n_done if is_best else self.best
        self._n_worse = 0 if is_best else self._n_worse + 1
        return is_best

    @property
    def is_over(self) -> bool:
        """Whether training should end: `patience` evaluations in a row had no lower loss."""
        return 0 < self._patience <= self._n_worse

    def describe(self) -> str:
        reason = f"no lower loss in {self._n_worse} evaluations (evaluation.patience)"
        if self.best is None:
            return f"{reason}; none was a finite number"
        return (
            f"{reason}; the lowest, {self._losses[self.best]:.4f}, was after {self.best} iterations"
        )


def is_complete(iterations: range, history: LossHistory | None) -> bool:
    """Whether a run has nothing left to do; without a history it does not evaluate.

    A run that was asked to stop in its last evaluation still has that evaluation to do.
    """
    if history is None:
        return not iterations
    lacks_last = iterations.start == iterations.stop and iterations.start not in history
    return history.is_over or (not iterations and not lacks_last)


class OpenRun:
    """A run folder that is locked. All ranks make the same calls; the first writes.

    `facts` must be the same when a checkpoint is loaded; `point` is the checkpoint to continue
    from, None for a run from the beginning; `history` has the losses of earlier evaluations, None
    if the run does not evaluate; `log` is the log of the first rank while it writes `records`.
    """

    def __init__(self, job: Job, experiment: Experiment, output: Path, lock: RunLock) -> None:
        """Finds where the run starts; the folder need not exist."""
        config = experiment.config
        self.output, self.lock, self.quiet_period = output, lock, QuietPeriod()
        self.checkpoints = CheckpointFolder(output / "checkpoints", config.checkpoint)
        self.log: RunLog | None = None
        self._job, self._experiment = job, experiment
        with job.fail_together():
            facts = facts_of_run(experiment)
        self.point = find_resume_point(job, self.checkpoints, facts)
        n_done = self.point.description.n_done if self.point else 0
        self.history: LossHistory | None = None
        if table := config.evaluation:
            self.history = job.on_first(lambda: LossHistory.read(output, table, n_done))
        self.facts = facts_of_start(facts, self.point)
        self.iterations = range(n_done, config.training.n_iterations)

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
        try:
            # From here on there is a folder in which to record how the run ends.
            with job.ending.recorded(self.output / ENDED):
                yield
        finally:
            if self.log:
                self.log.close()

    def describe_end(self) -> str:
        if self.history and self.history.is_over:
            return f"training has ended early: {self.history.describe()}"
        return "all iterations are done"

    def describe_complete(self) -> str:
        training = self._experiment.config.training
        if self.history and self.history.is_over:
            text = f"{self.describe_end()}; to continue, raise evaluation.patience"
        else:
            text = (
                f"all {training.n_iterations} iterations are done; to continue, raise "
                f"{self._experiment.length_key}: {describe_longer(training)}"
            )
        return f"{self.output}: {text}"
