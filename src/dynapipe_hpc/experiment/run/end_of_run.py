"""The end of a run without an error, as its folder records it."""

from signal import Signals

from dynapipe_hpc.experiment.run.loss_history import LossHistory
from dynapipe_hpc.job.end_stopped import STOPPED
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.job_outcome import JobOutcome


def record_end(job: Job, stop_signal: int, history: LossHistory | None) -> None:
    """Records an end without an error.

    Args:
        job: The job, on its first rank.
        stop_signal: Signal that stopped the run, or 0.
        history: Losses of evaluations; None if the run does not evaluate.
    """
    if stop_signal:
        stopped_by = f"stopped by {Signals(stop_signal).name}"
        job.ending.record(JobOutcome.STOPPED, STOPPED, stopped_by)
        return
    message = "all iterations are done"
    if history and history.is_over:
        message = f"training has ended early: {history.describe()}"
    job.ending.record(JobOutcome.COMPLETED, 0, message)
