"""The Slurm job that this process belongs to, and the end of a job that was asked to stop."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from dynapipe_hpc.data.errors import RunError, print_error
from dynapipe_hpc.job.launch import read_number
from dynapipe_hpc.job.ranks import Ranks

ANSWER_WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A Slurm job; its name is its number as users see it, ARRAY_TASK for an array."""

    job_id: int
    n_restarts: int
    name: str


def read_slurm_job(environment: Mapping[str, str]) -> SlurmJob | None:
    """The Slurm job of a process with this environment; None outside of Slurm."""
    job_id = read_number(environment, "SLURM_JOB_ID")
    if not job_id:
        return None
    array, task = map(environment.get, ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    return SlurmJob(
        job_id=job_id,
        n_restarts=read_number(environment, "SLURM_RESTART_COUNT"),
        name=f"{array}_{task}" if array and task else str(job_id),
    )


def requeue(job: SlurmJob) -> None:
    """Requeues the job, which ends its processes; raises `RunError` if Slurm does not."""
    command = ["scontrol", "requeue", str(job.job_id)]
    try:
        subprocess.run(  # noqa: S603 - a number
            command, check=True, capture_output=True, text=True, timeout=ANSWER_WITHIN_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise RunError(
            f"Slurm did not requeue job {job.name}: {reason.strip()}; submit it again to continue"
        ) from error


STOPPED = 75
"""Exit code of a stopped job (EX_TEMPFAIL of sysexits.h): the same command continues it."""


def end_stopped(job: Ranks, stop_signal: int) -> int:
    """Reports what stopped a run, requeues a Slurm job after SIGUSR1; returns the exit code."""
    if job.is_first:
        name = Signals(stop_signal).name
        print_error(f"stopped by {name}; start again to continue")
        slurm_job = read_slurm_job(os.environ)
        if stop_signal == Signals.SIGUSR1 and slurm_job is not None:
            requeue(slurm_job)
    return STOPPED
