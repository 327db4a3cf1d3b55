"""The check that all ranks execute plans made together."""

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.job.job import Job


def check_same_plans(job: Job, iteration: int, plans_hash: int) -> None:
    """Compares the hash over the plans of all ranks that every rank's plan holds.

    Ranks that execute plans not made together would deadlock or silently compute something
    wrong. So this is called before the first instruction, by all ranks together. It costs one small
    all-reduce, whatever their number; only a difference makes them ask who differs.

    Args:
        job: The ranks.
        iteration: Number of the iteration to execute.
        plans_hash: Hash in this rank's plan.

    Raises:
        SystemExit: On every rank, if any two differ; the first has named one such rank.
    """
    if job.is_same_on_all(plans_hash):
        return
    hashes = job.all_gather_int(plans_hash)
    rank = next(rank for rank, number in enumerate(hashes) if number != hashes[0])
    with job.fail_together():
        raise RunError(
            f"iteration {iteration}: the plan of rank {rank} belongs to plans with hash "
            f"{hashes[rank]:016x}, that of rank 0 to plans with hash {hashes[0]:016x}; they "
            "cannot be executed together; start the run again"
        )
