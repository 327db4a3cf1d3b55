"""The end of a job that was asked to stop."""

import os
from signal import Signals

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.say import say
from dynapipe_hpc.job.slurm import read_slurm_job, requeue

STOPPED = 75
"""Exit code of a stopped job (EX_TEMPFAIL of sysexits.h): the same command continues it."""


def end_stopped(job: Job, asked: int) -> int:
    """Says which signal stopped the run; SIGUSR1 puts a Slurm job back in the queue.

    Returns:
        The exit code.

    Raises:
        RunError: Slurm did not take the job back.
    """
    if job.is_first:
        name = Signals(asked).name
        say(f"stopped by {name}; start again to go on")
        slurm_job = read_slurm_job(os.environ)
        if asked == Signals.SIGUSR1 and slurm_job is not None:
            requeue(slurm_job)
    return STOPPED
