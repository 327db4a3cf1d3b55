from dynapipe_hpc.job.machine import crowding, shortage


def test_missing_cores_are_asked_for() -> None:
    said = shortage(2, 2)
    assert said is not None
    assert "each rank has 2 of the 3 cores" in said
    assert "--cpus-per-task=3" in said


def test_more_ranks_than_cores_are_warned_of() -> None:
    said = crowding(4, 1, 2)
    assert said is not None
    assert "4 x 1 threads (ranks x training.threads) share 2 cores and will slow" in said
