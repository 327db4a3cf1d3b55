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
        f"each rank has {n_cores} of the {wanted} cores that its threads (training.threads = "
        f"{threads}) and its planner need, and they will delay each other; ask for more "
        f"(--cpus-per-task={wanted})"
    )
