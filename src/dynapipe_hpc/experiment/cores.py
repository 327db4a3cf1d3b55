"""Whether the cores of a rank suffice."""

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
        f"each rank may use {n_cores} cores, but has {threads} threads (training.threads) and its "
        f"planner, which will delay each other; give it {wanted} (--cpus-per-task={wanted})"
    )
