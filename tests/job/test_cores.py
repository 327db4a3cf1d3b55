import pytest

from dynapipe_hpc.job.machine import crowding, shortage


@pytest.mark.parametrize(("n_cores", "threads"), [(2, 1), (8, 1), (5, 4)])
def test_a_core_per_thread_and_one_for_the_planner_suffice(n_cores: int, threads: int) -> None:
    assert shortage(n_cores, threads) is None


def test_missing_cores_are_asked_for() -> None:
    said = shortage(2, 2)
    assert said is not None
    assert "each rank has 2 of the 3 cores" in said
    assert "--cpus-per-task=3" in said


@pytest.mark.parametrize(("n_ranks", "threads"), [(4, 1), (2, 2), (1, 4)])
def test_as_many_threads_as_cores_do_not_crowd_a_host(n_ranks: int, threads: int) -> None:
    assert crowding(n_ranks, threads, 4) is None


def test_more_ranks_than_cores_are_warned_of() -> None:
    said = crowding(4, 1, 2)
    assert said is not None
    assert "4 x 1 threads (ranks x training.threads) share 2 cores and will slow" in said
