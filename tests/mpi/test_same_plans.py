"""Ranks compare their plans before they execute them."""

import pytest
from mpi4py import MPI

from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.job.job import Job

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


@pytest.mark.parametrize("number", [0, 7, 2**64 - 1])
def test_ranks_with_plans_of_one_planning_go_on(number: int) -> None:
    check_same_plans(Job(WORLD), 3, number)


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
@pytest.mark.parametrize("numbers", [(2**64 - 1, 0), (0, 2**64 - 1), (5, 4), (4, 5)])
def test_one_other_number_is_noticed_on_all_ranks(numbers: tuple[int, int]) -> None:
    own = numbers[RANK == N_RANKS - 1]
    assert not Job(WORLD).is_same_on_all(own)


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
def test_a_rank_with_a_plan_of_another_planning_ends_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = N_RANKS - 1
    with pytest.raises(SystemExit) as raised:
        check_same_plans(Job(WORLD), 3, 2**63 + 1 if last == RANK else 0xABC)
    assert raised.value.code == 1
    told = (
        f"dynapipe-hpc: iteration 3: the plan of rank {last} belongs to plans with hash "
        "8000000000000001, that of rank 0 to plans with hash 0000000000000abc; they cannot be "
        "executed together; start the run again\n"
    )
    assert capsys.readouterr().err == (told if RANK == 0 else "")
