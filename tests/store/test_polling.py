import time

from dynapipe_hpc.store.polling import poll


def test_an_answer_that_is_there_is_taken_even_without_time_to_wait() -> None:
    assert poll(lambda: True, timeout_s=0, longest_pause_s=1)


def test_gives_up_after_the_time_limit() -> None:
    start_s = time.monotonic()
    assert not poll(lambda: False, timeout_s=0.05, longest_pause_s=1e-3)
    assert 0.05 <= time.monotonic() - start_s < 1


def test_a_long_wait_leaves_the_core_to_others() -> None:
    start_s = time.thread_time()
    poll(lambda: False, timeout_s=0.5, longest_pause_s=0.2e-3)
    assert time.thread_time() - start_s < 0.25
