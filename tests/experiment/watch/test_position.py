import threading
import time
from collections.abc import Callable

from tests.examples.example_runs import example_plans

from dynapipe_hpc.experiment.watch.rank_status import (
    DeviceProgress,
    Phase,
    Position,
    Standing,
    status_of,
)
from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_stages=2, device_memory_bytes=1)
MAX_S = 5.0


class Device:
    """A device that has reached the moments up to a number."""

    def __init__(self) -> None:
        self.reached = -1

    def has_passed(self, moment: int) -> bool:
        return moment <= self.reached


def executing(iteration: int) -> Position:
    position = Position()
    position.start_plan(iteration, example_plans(iteration)[0])
    return position


def becomes(looked: Callable[[], Standing], expected: Standing) -> bool:
    end_s = time.monotonic() + MAX_S
    while looked() != expected and time.monotonic() < end_s:
        time.sleep(0.01)
    return looked() == expected


def test_the_first_end_that_has_not_happened_is_that_of_the_instruction_that_hangs() -> None:
    position, device = executing(5), Device()
    with DeviceProgress(position, device.has_passed) as progress:
        for index in range(8):
            progress.reach(index, 10 * index)
        assert position.look() == Standing(Phase.EXECUTES, 5, 7, 0)
        device.reached = 55  # past the start of instruction 5 and not its end
        assert becomes(position.look, Standing(Phase.EXECUTES, 5, 7, 5))
        found = status_of(0, "n1", "runs", for_s=9.0, position=position, cluster=CLUSTER)
        assert found.place == (
            "iteration 5, instruction 5 (WaitReceive g0<!), 7 launched, "
            "micro-batch 0 of 3 x 16 tokens, peer 1"
        )
        assert found.waits
        device.reached = 70
        assert becomes(position.look, Standing(Phase.EXECUTES, 5, 7, 7))


def test_a_device_that_fails_ends_the_looking_and_nothing_else() -> None:
    asked = threading.Event()

    def fails(_: int) -> bool:
        asked.set()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    position = executing(0)
    with DeviceProgress(position, fails) as progress:
        progress.reach(0, 0)
        assert asked.wait(MAX_S)
        progress.reach(1, 1)
    assert position.look() == Standing(Phase.EXECUTES, 0, 1, 0)
