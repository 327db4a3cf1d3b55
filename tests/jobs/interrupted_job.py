"""A job that waits for a signal, and in which the rank that says why it ends takes its time.

mpiexec -n N python -m tests.jobs.interrupted_job
"""

import time
from unittest.mock import patch

from dynapipe_hpc.data.errors import print_error
from dynapipe_hpc.job.job import open_job


def main() -> None:
    """Waits a minute for a signal."""
    with patch("dynapipe_hpc.job.job.print_error", _slowly), open_job() as job:
        job.barrier()
        if job.is_first:
            print("waiting", flush=True)
        time.sleep(60)


def _slowly(message: str) -> None:
    time.sleep(0.5)
    print_error(message)


if __name__ == "__main__":
    main()
