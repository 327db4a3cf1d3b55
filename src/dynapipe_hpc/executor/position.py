"""Where a rank is, in memory that other processes may look at."""

from dataclasses import dataclass
from enum import IntEnum

from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.rank_plan import RankPlan

_PHASE, _ITERATION, _INDEX, _PLAN_BYTES = range(4)
_WORD_BYTES = 8
HEAD_BYTES = 4 * _WORD_BYTES


class Phase(IntEnum):
    """What a rank does, in the order of an iteration."""

    STARTS = 0
    WAITS_FOR_PLAN = 1
    COMPARES_PLANS = 2
    EXECUTES = 3
    REPORTS = 4
    SAVES = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank was when someone looked.

    Attributes:
        phase: What it did.
        iteration: For which iteration.
        index: The instruction, if it executes; behind the last one it waits for the device.
    """

    phase: Phase
    iteration: int
    index: int


class Position:
    """A rank writes where it is, and whoever shares the memory reads it.

    The memory holds four words and the bytes of the plan in execution, so that a rank which was
    killed or stopped can still be told of by others. Nothing is locked: a reader may find a plan
    that is just being replaced, which its checksum tells.
    """

    def __init__(self, memory: memoryview) -> None:
        """Uses `memory`: `HEAD_BYTES`, and room for the largest plan."""
        self._words = memory[:HEAD_BYTES].cast("q")
        self._plan = memory[HEAD_BYTES:]

    def enter(self, phase: Phase, iteration: int) -> None:
        """Notes what is done next."""
        self._words[_INDEX] = 0
        self._words[_ITERATION] = iteration
        self._words[_PHASE] = phase

    def start_plan(self, iteration: int, plan: bytes) -> None:
        """Notes the plan that is executed next; one that has no room is not shown."""
        self._words[_PLAN_BYTES] = 0
        if len(plan) <= len(self._plan):
            self._plan[: len(plan)] = plan
            self._words[_PLAN_BYTES] = len(plan)
        self.enter(Phase.EXECUTES, iteration)

    def reach(self, index: int) -> None:
        """Notes the instruction that is executed next."""
        self._words[_INDEX] = index

    def look(self) -> Standing:
        """Where the rank is."""
        words = self._words
        return Standing(Phase(words[_PHASE]), words[_ITERATION], words[_INDEX])

    def read_plan(self) -> RankPlan | None:
        """The plan that the rank executed last; none if it cannot be read."""
        try:
            return decode(bytes(self._plan[: self._words[_PLAN_BYTES]]))
        except PlanFormatError:
            return None


def private_position() -> Position:
    """A position that nobody else sees."""
    return Position(memoryview(bytearray(HEAD_BYTES)))
