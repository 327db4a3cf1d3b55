"""Collectives of two threads at once, as of the ranks of a run and their planners.

Some libraries hand collectives over to HCOLL or UCC, which are not made for that everywhere.
"""

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from cluster.one_sided import summary
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI

N_ALONE = 200


def collectives(job: Job) -> Mapping[str, object]:
    """Times in us of small all-reduces and barriers, of one thread."""
    return {
        "all-reduce": _median_us(lambda: job.all_reduce_max([job.rank] * 8)),
        "barrier": _median_us(job.barrier),
    }


def threads(job: Job) -> Mapping[str, object]:
    """All-reduces of two threads on two communicators, with checked sums."""
    comms = [MPI.Intracomm(job.comm.Dup()) for _ in range(2)]
    wrong: list[int] = []
    started_s = time.perf_counter()
    workers = [threading.Thread(target=_sum, args=(comm, wrong)) for comm in comms]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_us = 1e6 * (time.perf_counter() - started_s) / N_ALONE
    n_wrong = int(job.all_reduce_sum([len(wrong)])[0])
    for comm in comms:
        comm.Free()
    return {"all-reduce, two threads": took_us, "n_wrong": n_wrong}


def _sum(comm: MPI.Intracomm, wrong: list[int]) -> None:
    n_ranks = comm.Get_size()
    for i in range(N_ALONE):
        summed = np.empty(4)
        comm.Allreduce(np.full(4, float(i)), summed)
        if not np.array_equal(summed, np.full(4, float(i * n_ranks))):
            wrong.append(i)


def _median_us(work: Callable[[], object]) -> Mapping[str, float]:
    times_us = list[float]()
    for _ in range(N_ALONE):
        started_s = time.perf_counter()
        work()
        times_us.append(1e6 * (time.perf_counter() - started_s))
    return summary(times_us)
