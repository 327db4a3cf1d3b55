"""Clocks that time instructions on the device that executes them: processor or GPU."""

import time
from typing import Protocol, TypeVar

Moment = TypeVar("Moment")


class Clock(Protocol[Moment]):
    """Clock that records moments without waiting, and later gives the time between them."""

    def now(self) -> Moment:
        """The current moment in the order of launched work; does not wait for that work."""
        ...

    def has_passed(self, moment: Moment) -> bool:
        """Whether the work launched before a moment is finished; does not wait for it."""
        ...

    def ms_between(self, start: Moment, end: Moment) -> float:
        """Time from one moment to a later one in ms; waits until the later one is reached."""
        ...


class HostClock:
    """The clock of the processor, on which work is finished when its call returns."""

    def now(self) -> float:
        """The current moment in seconds, from an arbitrary origin."""
        return time.perf_counter()

    def has_passed(self, moment: float) -> bool:  # noqa: ARG002
        """True: no work is launched ahead."""
        return True

    def ms_between(self, start: float, end: float) -> float:
        """Time between two moments in ms."""
        return 1e3 * (end - start)
