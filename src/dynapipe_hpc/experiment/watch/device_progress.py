"""Progress of a rank whose device executes instructions later than its host."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Self

from dynapipe_hpc.executor.clock import Clock, HostClock
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.experiment.watch.position import Position

_TICK_S = 0.25


class DeviceProgress:
    """The `Progress` of a rank that computes on a GPU.

    A thread looks which moments the device has reached. The executing thread cannot: it waits in a
    launch when the device is too far behind. Nor can the watchdog, which must not wait for a device
    that hangs.
    """

    def __init__(self, position: Position, has_passed: Callable[[Any], bool]) -> None:
        """Prepares to record in `position`; `has_passed` is that of the clock."""
        self._position = position
        self._has_passed = has_passed
        self._moments: list[Any] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="device progress", daemon=True)

    def __enter__(self) -> Self:
        """Starts looking."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops looking; a look that does not return is left to itself."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def reach(self, index: int, before: object) -> None:
        """Records that the host has executed all instructions before `index`; see `Progress`."""
        if index == 0:
            self._moments = []
        self._position.launch(index)
        self._moments.append(before)

    def _follow(self) -> None:
        # A device that fails tells the executing thread, too, which names the instruction.
        with suppress(RuntimeError):
            self._look()

    def _look(self) -> None:
        moments, n_passed = self._moments, 0
        while not self._stopped.wait(_TICK_S):
            if moments is not self._moments:
                moments, n_passed = self._moments, 0
            while n_passed < len(moments) and self._has_passed(moments[n_passed]):
                n_passed += 1
            # The moment before an instruction is the end of the one before.
            self._position.complete(max(n_passed - 1, 0))


def progress_of(clock: Clock[Any], position: Position) -> AbstractContextManager[Progress]:
    """Record of the instructions that a rank's device executes."""
    if isinstance(clock, HostClock):
        return nullcontext(position)
    return DeviceProgress(position, clock.has_passed)
