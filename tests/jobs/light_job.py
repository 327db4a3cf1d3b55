"""A rank without torch in a job that hangs: all wait for one that never comes.

    mpiexec -n N python -m tests.jobs.light_job RANK FOLDER

The last rank of the job stops itself if RANK is its number; any other RANK sleeps in Python. All
other ranks wait for it in a barrier. The watchdogs say so after LIMIT_S.
"""

import os
import signal
import sys
import time
from pathlib import Path

from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.experiment.watch.rank_status import Phase
from dynapipe_hpc.experiment.watch.watchdog import Watchdog
from dynapipe_hpc.job.job import open_job

LIMIT_S = 2.0


def main() -> None:
    """Hangs until the watchdogs end the job."""
    missing = int(sys.argv[1])
    with open_job() as job:
        config = tiny_experiment(n_stages=2, n_replicas=job.size // 2)
        folder = Path(sys.argv[2])
        watchdog = Watchdog(job, with_keys(config, executor={"timeout_s": LIMIT_S}), folder)
        job.barrier()
        with job.ending.recorded(folder / "ended.json"), watchdog:
            watchdog.position.enter(Phase.COMPARES_PLANS, 7)
            if job.rank == missing:
                watchdog.position.enter(Phase.STARTS, 7)
                print(f"hangs at {time.time():.3f}", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            job.barrier()


if __name__ == "__main__":
    main()
