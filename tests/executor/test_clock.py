import time

from dynapipe_hpc.executor.clock import HostClock


def test_moments_of_the_host_are_as_far_apart_as_it_waited() -> None:
    clock = HostClock()
    start = clock.now()
    time.sleep(0.01)
    assert 10 <= clock.ms_between(start, clock.now()) < 1000
