"""The lock on a folder, held for all ranks that write there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.experiment.lock.run_lock import RunLock
from dynapipe_hpc.job.ranks import Alone, Ranks
from dynapipe_hpc.job.slurm import read_slurm_job


@contextmanager
def locked(ranks: Ranks, output: Path) -> Iterator[RunLock]:
    """Locks a folder while the block runs; all ranks together, the first holds the lock.

    The lock is released when all ranks leave the block together. After an error on one rank the
    others may still be writing, so the lock stays until the job has ended; the next start then
    sees that its holder is gone.

    Raises:
        SystemExit: Another run holds the lock, or the folder cannot be written; the first rank
            has said so. A process that needs no MPI raises `InputError` instead.
    """
    slurm_job = read_slurm_job(os.environ)
    lock = RunLock(output, f"Slurm job {slurm_job.name}" if slurm_job else "")
    with ranks.fail_together():
        if ranks.is_first:
            lock.acquire()
    is_together = isinstance(ranks, Alone)  # whose errors are those of all
    try:
        yield lock
        is_together = True
    except SystemExit:
        is_together = True
        raise
    finally:
        if ranks.is_first and is_together:
            lock.release()
