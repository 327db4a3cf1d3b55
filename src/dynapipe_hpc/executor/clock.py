"""What time it is, where instructions are executed."""

import time
from typing import Protocol, TypeVar

Moment = TypeVar("Moment")


class Clock(Protocol[Moment]):
    """Notes moments at once, and says later how far apart they were."""

    def now(self) -> Moment:
        """This moment in the order of what was launched; nobody waits for it."""
        ...

    def ms_between(self, start: Moment, end: Moment) -> float:
        """Time from one moment to a later one; waits until that has come."""
        ...


class HostClock:
    """The clock of the processor, on which whatever is called has been done."""

    def now(self) -> float:
        """Seconds from any origin."""
        return time.perf_counter()

    def ms_between(self, start: float, end: float) -> float:
        """The difference."""
        return 1e3 * (end - start)
