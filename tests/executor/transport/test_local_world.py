import pytest
from tests.examples.local_ranks import LocalWorld

from dynapipe_hpc.executor.transport.transport import TransportError


def test_results_come_by_rank() -> None:
    assert LocalWorld(4).run(lambda rank: 10 * rank) == [0, 10, 20, 30]


def test_a_rank_goes_on_when_another_changes_what_it_waits_for() -> None:
    world, done = LocalWorld(2), [False, False]

    def work(rank: int) -> None:
        if rank == 0:
            world.wait_until(0, lambda: done[1], "rank 1")
        with world.changing():
            done[rank] = True

    world.run(work)
    assert done == [True, True]


def test_ranks_that_wait_for_each_other_are_told() -> None:
    world = LocalWorld(2)
    with pytest.raises(TransportError, match="deadlock: rank 0 waits for a; rank 1 waits for b"):
        world.run(lambda rank: world.wait_until(rank, lambda: False, "ab"[rank]))


def test_a_rank_that_waits_for_one_that_has_ended_is_told() -> None:
    world = LocalWorld(2)

    def work(rank: int) -> None:
        if rank == 1:
            world.wait_until(1, lambda: False, "a word from rank 0")

    with pytest.raises(TransportError, match="deadlock: rank 1 waits for a word from rank 0"):
        world.run(work)


def test_the_first_failure_is_the_one_that_is_raised() -> None:
    world = LocalWorld(2)

    def work(rank: int) -> None:
        if rank == 0:
            raise KeyError("lost")
        world.wait_until(1, lambda: False, "rank 0")

    with pytest.raises(KeyError, match="lost"):
        world.run(work)
