"""Ranks see where others are, and agree on who ends the job."""

import os
import time

import pytest
from mpi4py import MPI
from tests.examples.example_runs import example_plans

from dynapipe_hpc.experiment.watch.position import Phase, Standing
from dynapipe_hpc.experiment.watch.rank_status import RankStatus
from dynapipe_hpc.experiment.watch.watchdog import HostPositions, OtherHosts
from dynapipe_hpc.job.ending import Ending
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import state_of
from dynapipe_hpc.plan.codec import encode_plans

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


def test_one_rank_may_say_why_the_job_ends() -> None:
    ending = Ending()
    ending.open()
    claims = WORLD.allgather([ending.claim(), ending.claim()])
    assert sum(first for first, _ in claims) == 1
    assert not any(second for _, second in claims)
    ending.close()


def test_the_largest_number_is_known_to_all() -> None:
    assert Job(WORLD).all_reduce_max([0, -1 - RANK]) == [0, -1]
    assert Job(WORLD).all_reduce_max([15 if RANK == N_RANKS - 1 else 0]) == [15]


def test_ranks_of_a_host_see_each_other() -> None:
    positions = HostPositions(Job(WORLD), plan_bytes=10_001)
    plan = example_plans(RANK)[0]
    positions.own.start_plan(RANK, encode_plans([plan])[0])
    positions.own.reach(5)
    WORLD.Barrier()
    assert [neighbour.rank for neighbour in positions.neighbours] == list(range(N_RANKS))
    for rank in range(N_RANKS):
        assert positions[rank].look() == Standing(Phase.EXECUTES, rank, 5, 5)
        assert positions[rank].read_plan() == example_plans(rank)[0]
    states = [state_of(neighbour.pid) for neighbour in positions.neighbours]
    WORLD.Barrier()
    assert states == ["runs"] * N_RANKS
    assert positions.neighbours[RANK].pid == os.getpid()
    positions.close()


def starts(rank: int) -> RankStatus:
    return RankStatus(rank, f"n{rank}", "runs", 1.0, 7, "starts", "starts", "", "", waits=False)


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
@pytest.mark.parametrize("is_silent", [False, True])
def test_ranks_of_other_hosts_answer_unless_they_hang(is_silent: bool) -> None:
    """As if every rank had a host of its own; the last of them may hang."""
    others = OtherHosts(Job(WORLD), here=[RANK])
    last = N_RANKS - 1

    def tell() -> list[RankStatus]:
        return [starts(RANK)]

    found = []
    if RANK == 0:
        found = others.ask(tell, longest_s=2.0 if is_silent else 60.0)
    all_are_done = WORLD.Ibarrier()
    while not all_are_done.Test():
        if not (is_silent and last == RANK):
            others.answer(tell)
        time.sleep(0.01)
    expected = [rank for rank in range(1, N_RANKS) if not (is_silent and rank == last)]
    hosts = WORLD.bcast(sorted(where.host for where in found))
    assert hosts == [f"n{rank}" for rank in expected]
    others.answer(tell)
    WORLD.Barrier()
    others.close()


@pytest.mark.skipif(N_RANKS < 4, reason="needs two hosts with two ranks")
@pytest.mark.parametrize("silent", [None, 2])
def test_one_rank_per_host_is_asked_and_others_only_if_it_hangs(silent: int | None) -> None:
    """Ranks 0 and 1 are on one host, all others on a second."""
    here = list(range(2)) if RANK < 2 else list(range(2, N_RANKS))
    others = OtherHosts(Job(WORLD), here)
    n_told = 0

    def tell() -> list[RankStatus]:
        nonlocal n_told
        n_told += 1
        return [starts(rank) for rank in here]

    found = others.ask(tell, longest_s=60.0) if RANK == 0 else []
    all_are_done = WORLD.Ibarrier()
    while not all_are_done.Test():
        if silent != RANK:
            others.answer(tell)
        time.sleep(0.01)
    assert WORLD.bcast([where.rank for where in found]) == list(range(2, N_RANKS))
    told = WORLD.allgather(n_told)
    if silent is None:
        assert told == [0, 0, 1] + [0] * (N_RANKS - 3)
    else:
        assert told[:3] == [0, 0, 0]
        assert sum(told) <= 2
    others.answer(tell)
    WORLD.Barrier()
    others.close()
