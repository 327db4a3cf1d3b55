"""Times of the update at the end of an iteration, measured."""

import time
from statistics import median

from dynapipe_hpc.experiment.rank.devices import wait_for
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.table.profile_table import UpdateProfile
from dynapipe_hpc.training.optimizer import Optimizer

REPETITIONS = 7


def measure_update(job: Job, optimizer: Optimizer) -> UpdateProfile:
    """Times the gradient all-reduce and the optimizer step of this rank's stage (collective).

    A job of one stage reduces nothing, so its table holds no time for the all-reduce.

    Args:
        job: The ranks.
        optimizer: The optimizer of the weights of this rank.

    Returns:
        The median over ranks and repetitions on the first rank, zeros elsewhere.
    """
    times = [_update_ms(job, optimizer) for _ in range(1 + REPETITIONS)][1:]
    n_bytes = optimizer.parameters.weight_bytes
    per_byte = [median(column) / n_bytes for column in zip(*times, strict=True)]
    by_rank = job.gather(per_byte)
    if not by_rank:
        return UpdateProfile()
    reduce, step = (median(column) for column in zip(*by_rank, strict=True))
    return UpdateProfile(reduce_ms_per_byte=reduce, optimizer_ms_per_byte=step)


def _update_ms(job: Job, optimizer: Optimizer) -> tuple[float, float]:
    gradients = optimizer.parameters.gradients.fill_(1e-3)
    wait_for(gradients.device)
    job.barrier()
    start_s = time.perf_counter()
    optimizer.reduce_gradients()
    wait_for(gradients.device)
    reduced_s = time.perf_counter()
    optimizer.step()
    wait_for(gradients.device)
    end_s = time.perf_counter()
    return 1e3 * (reduced_s - start_s), 1e3 * (end_s - reduced_s)
