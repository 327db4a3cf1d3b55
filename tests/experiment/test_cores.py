import pytest

from dynapipe_hpc.experiment.cores import shortage


@pytest.mark.parametrize(("n_cores", "threads"), [(2, 1), (8, 1), (5, 4)])
def test_a_core_per_thread_and_one_for_the_planner_suffice(n_cores: int, threads: int) -> None:
    assert shortage(n_cores, threads) is None


def test_missing_cores_are_asked_for() -> None:
    said = shortage(2, 2)
    assert said is not None
    assert "each rank has 2 of the 3 cores" in said
    assert "--cpus-per-task=3" in said
