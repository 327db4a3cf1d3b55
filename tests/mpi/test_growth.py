"""Calls of MPI per rank and iteration do not become more with the ranks of a job."""

from collections import Counter

import pytest
from mpi4py import MPI

from dynapipe_hpc.job.job import Job
from growth.count_calls import KINDS, counted_calls
from growth.steps_of_a_rank import iterate, of_all

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


def most_calls(job: Job, ranks_per_host: int) -> dict[str, Counter[str]]:
    """The most calls of any rank in an iteration, by step and kind."""
    with counted_calls() as calls:
        counted = Job(MPI.Intracomm(job.comm))
        found = iterate(calls, counted, ranks_per_host, n_iterations=4)
    steps = {step: of_all(job.comm, parts) for step, parts in found.items()}
    return {
        step: +Counter({kind: int(costs[kind]) for kind in KINDS}) for step, costs in steps.items()
    }


@pytest.fixture
def pair() -> Job:
    """A job of two ranks, one of several at the same time."""
    return Job(WORLD).divide(RANK // 2)


@pytest.mark.skipif(N_RANKS < 4, reason="needs jobs of two sizes")
def test_ranks_call_mpi_as_often_in_a_larger_job(pair: Job) -> None:
    few, many = most_calls(pair, 1), most_calls(Job(WORLD), 1)
    assert few["agree"] == many["agree"] == Counter(collectives=3)  # hash, and report twice
    assert few["take"] == many["take"] == Counter()


@pytest.mark.skipif(N_RANKS < 4, reason="needs jobs of two sizes")
def test_a_planner_calls_mpi_as_often_as_there_are_other_hosts(pair: Job) -> None:
    two_hosts = most_calls(pair, 1)["plan"]
    assert two_hosts["one_sided"] > 0
    assert most_calls(Job(WORLD), N_RANKS // 2)["plan"] == two_hosts
    on_all = most_calls(Job(WORLD), 1)["plan"]
    assert on_all == Counter({kind: (N_RANKS - 1) * n for kind, n in two_hosts.items()})
    assert most_calls(Job(WORLD), N_RANKS)["plan"] == Counter()
