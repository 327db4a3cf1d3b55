"""Position of a rank in its iteration, in memory that other processes can read."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from dynapipe_hpc.executor.clock import Clock, HostClock
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.rank_plan import RankPlan

_PHASE, _ITERATION, _INDEX, _ON_DEVICE, _PLAN_BYTES = range(5)
_WORD_BYTES = 8
HEAD_BYTES = 5 * _WORD_BYTES


class Phase(IntEnum):
    """Phases of a rank, in the order of an iteration."""

    STARTS = 0
    WAITS_FOR_PLAN = 1
    COMPARES_PLANS = 2
    EXECUTES = 3
    REPORTS = 4
    SAVES = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """Position of a rank at the moment when it was read."""

    phase: Phase
    iteration: int
    index: int  # of the instruction that the host executes
    on_device: int  # of that which the device executes, which may be an earlier one


class Position:
    """Position of a rank, written by the rank and read by processes that share the memory.

    The memory holds five words and the bytes of the plan in execution, so that other ranks can
    report on one that was killed or stopped. There is no lock: a reader may find a plan that is
    just being replaced, and recognizes it by its checksum.

    It is the `Progress` of a rank that computes on its host.
    """

    def __init__(self, memory: memoryview) -> None:
        """Uses `memory`, which has `HEAD_BYTES` and room for the largest plan."""
        self._words = memory[:HEAD_BYTES].cast("q")
        self._plan = memory[HEAD_BYTES:]

    def enter(self, phase: Phase, iteration: int) -> None:
        """Records the phase that begins."""
        self._words[_INDEX] = self._words[_ON_DEVICE] = 0
        self._words[_ITERATION] = iteration
        self._words[_PHASE] = phase

    def start_plan(self, iteration: int, plan: bytes) -> None:
        """Records the plan that is executed next; one that is too large is not recorded."""
        self._words[_PLAN_BYTES] = 0
        if len(plan) <= len(self._plan):
            self._plan[: len(plan)] = plan
            self._words[_PLAN_BYTES] = len(plan)
        self.enter(Phase.EXECUTES, iteration)

    def reach(self, index: int, before: object = None) -> None:  # noqa: ARG002
        """Records the index of the instruction that is executed next."""
        self._words[_INDEX] = self._words[_ON_DEVICE] = index

    def launch(self, index: int) -> None:
        """Records the index of the instruction that the host executes next."""
        self._words[_INDEX] = index

    def complete(self, index: int) -> None:
        """Records the index of the first instruction that the device has not completed."""
        self._words[_ON_DEVICE] = index

    def look(self) -> Standing:
        """Reads the current position of the rank."""
        words = self._words
        numbers = (words[_ITERATION], words[_INDEX], words[_ON_DEVICE])
        return Standing(Phase(words[_PHASE]), *numbers)

    def read_plan(self) -> RankPlan | None:
        """The plan that the rank executed last; None if it cannot be read."""
        try:
            return decode(bytes(self._plan[: self._words[_PLAN_BYTES]]))
        except PlanFormatError:
            return None


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
