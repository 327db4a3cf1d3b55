"""The plan store and the watchdog, whose memory the ranks share."""

from collections.abc import Iterator
from contextlib import contextmanager

from dynapipe_hpc.experiment.watch.watchdog import Watchdog
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlanStore


def open_store(job: Job, config: StoreConfig, first_iteration: int) -> MpiPlanStore:
    """Opens the plan store, and prints who makes progress on it; all ranks together."""
    store = MpiPlanStore(
        job.comm,
        config.look_ahead,
        config.plan_bytes,
        first_iteration=first_iteration,
        progress=config.progress,
    )
    if job.is_first:
        print(store.progress, flush=True)
    return store


@contextmanager
def closing_together(store: PlanStore, watchdog: Watchdog) -> Iterator[None]:
    """Closes both when all ranks leave the block together.

    Not after an error: closing is collective, and other ranks may never reach it.
    """
    try:
        yield
    except SystemExit:  # of all ranks
        watchdog.close()
        store.close()
        raise
    watchdog.close()
    store.close()
