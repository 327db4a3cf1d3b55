import os

from mpi4py import MPI

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import crowded_hosts, shortage


def test_missing_cores_are_asked_for() -> None:
    said = shortage(2, 2)
    assert said is not None
    assert "each rank has 2 of the 3 cores" in said
    assert "--cpus-per-task=3" in said


def test_more_threads_than_cores_are_warned_of() -> None:
    n = len(os.sched_getaffinity(0))
    job = Job(MPI.COMM_SELF)
    assert not crowded_hosts(job, n)
    (said,) = crowded_hosts(job, n + 1)
    assert f"1 x {n + 1} threads (ranks x training.threads) share {n} cores and will slow" in said
