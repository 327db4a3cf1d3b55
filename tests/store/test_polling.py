import time

from dynapipe_hpc.store.mpi import poll


def test_an_answer_that_is_there_is_taken_even_without_time_to_wait() -> None:
    assert poll(lambda: True, 1, timeout_s=0)


def test_gives_up_after_the_time_limit() -> None:
    start_s = time.monotonic()
    assert not poll(lambda: False, 0.1, timeout_s=0.05)
    assert 0.05 <= time.monotonic() - start_s < 1


def test_a_wait_leaves_the_core_to_others() -> None:
    start_s = time.thread_time()
    poll(lambda: False, 0, timeout_s=0.5)  # with the shortest pauses
    assert time.thread_time() - start_s < 0.25


def test_a_longer_wait_asks_less_often() -> None:
    asked: list[float] = []

    def ask() -> bool:
        asked.append(time.monotonic())
        return False

    poll(ask, 0.01, timeout_s=0.4)
    early, late = (sum(a < s - asked[0] <= b for s in asked) for a, b in ((0, 0.1), (0.3, 0.4)))
    assert late < 0.6 * early


def test_the_longest_pause_is_chosen_by_who_waits() -> None:
    def asked_late(**longest: float) -> int:
        asked: list[float] = []

        def ask() -> bool:
            asked.append(time.monotonic())
            return False

        poll(ask, 0.1, timeout_s=0.4, **longest)
        return sum(moment - asked[0] > 0.1 for moment in asked)

    # With a tenth of the wait each, 15 pauses, and one more look at the time limit.
    assert asked_late(longest_pause_s=1.0) <= 16
    assert asked_late() > 50
