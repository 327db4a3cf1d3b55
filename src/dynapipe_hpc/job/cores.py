"""Whether the cores of a rank, and those of a host, suffice."""

import os
import platform

from dynapipe_hpc.job.job import Job

PLANNER_THREADS = 1


def shortage(n_cores: int, threads: int) -> str | None:
    """What to say of ranks whose planner has no core of its own; None if it has.

    Args:
        n_cores: Cores that each rank may use.
        threads: Processor threads of a rank's computations, `training.threads`.
    """
    wanted = threads + PLANNER_THREADS
    if n_cores >= wanted:
        return None
    return (
        f"each rank has {n_cores} of the {wanted} cores that its threads (training.threads = "
        f"{threads}) and its planner need, and they will delay each other; ask for more "
        f"(--cpus-per-task={wanted})"
    )


def crowding(n_ranks: int, threads: int, n_cores: int) -> str | None:
    """What to say of ranks that compute on more threads than their host has cores.

    Args:
        n_ranks: Ranks of the host.
        threads: Processor threads of a rank's computations, `training.threads`.
        n_cores: Cores of the host that any of them may use.
    """
    if n_ranks * threads <= n_cores:
        return None
    return (
        f"{n_ranks} x {threads} threads (ranks x training.threads) share {n_cores} cores and will "
        "slow each other down; use fewer ranks per host, or fewer threads"
    )


def crowded_hosts(job: Job, threads: int) -> list[str]:
    """A line per host whose ranks compute on more threads than it has cores, on the first rank.

    All ranks together.
    """
    on_host = job.on_this_host()
    cores = set[int]().union(*on_host.gather(os.sched_getaffinity(0)))
    said = crowding(on_host.size, threads, len(cores)) if on_host.is_first else None
    found: list[tuple[str, str | None]] = job.gather((platform.node(), said))
    return [f"{host}: {text}" for host, text in found if text is not None]
