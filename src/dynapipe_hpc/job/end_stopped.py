"""End of a job that was asked to stop."""

import os
from signal import Signals

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.print_error import print_error
from dynapipe_hpc.job.slurm import read_slurm_job, requeue

STOPPED = 75
"""Exit code of a stopped job (EX_TEMPFAIL of sysexits.h): the same command continues it."""


def end_stopped(job: Job, stop_signal: int) -> int:
    """Reports which signal stopped the run; after SIGUSR1, requeues a Slurm job.

    Returns:
        The exit code.

    Raises:
        RunError: Slurm did not requeue the job.
    """
    if job.is_first:
        name = Signals(stop_signal).name
        print_error(f"stopped by {name}; start again to continue")
        slurm_job = read_slurm_job(os.environ)
        if stop_signal == Signals.SIGUSR1 and slurm_job is not None:
            requeue(slurm_job)
    return STOPPED
