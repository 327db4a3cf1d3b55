"""Checks that a rank, and a host, has enough processor cores."""

import os
import platform

from dynapipe_hpc.job.job import Job

PLANNER_THREADS = 1


def shortage(n_cores: int, threads: int) -> str | None:
    """Warning about ranks whose planner has no core of its own; None if it has one.

    Args:
        n_cores: Number of cores that each rank may use.
        threads: Number of processor threads of a rank's computations, `training.threads`.
    """
    n_wanted = threads + PLANNER_THREADS
    if n_cores >= n_wanted:
        return None
    return (
        f"each rank has {n_cores} of the {n_wanted} cores that its threads (training.threads = "
        f"{threads}) and its planner need, so they will delay each other; request more cores "
        f"(--cpus-per-task={n_wanted})"
    )


def crowding(n_ranks: int, threads: int, n_cores: int) -> str | None:
    """Warning about a host whose ranks compute on more threads than it has cores; None if not.

    Args:
        n_ranks: Number of ranks on the host.
        threads: Number of processor threads of a rank's computations, `training.threads`.
        n_cores: Number of cores of the host that any of them may use.
    """
    if n_ranks * threads <= n_cores:
        return None
    return (
        f"{n_ranks} x {threads} threads (ranks x training.threads) share {n_cores} cores and will "
        "slow each other down; use fewer ranks per host, or fewer threads"
    )


def crowded_hosts(job: Job, threads: int) -> list[str]:
    """A warning per crowded host (see `crowding`), on the first rank; an empty list elsewhere.

    Called by all ranks together.
    """
    on_host = job.on_this_host()
    cores = set[int]().union(*on_host.gather(os.sched_getaffinity(0)))
    crowding_note = crowding(on_host.size, threads, len(cores)) if on_host.is_first else None
    on_host.free()
    answers: list[tuple[str, str | None]] = job.gather((platform.node(), crowding_note))
    return [f"{host}: {text}" for host, text in answers if text is not None]
