"""Ranks see where others are, and agree on who ends the job."""

import os
from pathlib import Path

import pytest
from mpi4py import MPI
from tests.examples.example_runs import example_plans

from dynapipe_hpc.experiment.watch.rank_status import Phase, Standing
from dynapipe_hpc.experiment.watch.watchdog import HostPositions
from dynapipe_hpc.job.job import Ending, Job
from dynapipe_hpc.job.process import state_of
from dynapipe_hpc.plan.codec import encode_plans

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


def test_one_rank_may_say_why_the_job_ends(tmp_path: Path) -> None:
    ending = Ending()
    folder = WORLD.bcast(tmp_path)
    with ending.recorded(folder / "ended.json"):
        claims = WORLD.allgather([ending.claim(), ending.claim()])
    assert sum(first for first, _ in claims) == 1
    assert not any(second for _, second in claims)


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
