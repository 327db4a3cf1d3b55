"""Position of a rank in its iteration, in memory that other processes can read."""

from dataclasses import dataclass
from enum import IntEnum

from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.rank_plan import RankPlan

_PHASE, _ITERATION, _INDEX, _PLAN_BYTES = range(4)
_WORD_BYTES = 8
HEAD_BYTES = 4 * _WORD_BYTES


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
    """Position of a rank at the moment when it was read.

    Attributes:
        phase: Phase of the rank.
        iteration: Number of the iteration.
        index: Index of the instruction while it executes; after the last, it waits for the device.
    """

    phase: Phase
    iteration: int
    index: int


class Position:
    """Position of a rank, written by the rank and read by processes that share the memory.

    The memory holds four words and the bytes of the plan in execution, so that other ranks can
    report on one that was killed or stopped. There is no lock: a reader may find a plan that is
    just being replaced, and recognizes it by its checksum.
    """

    def __init__(self, memory: memoryview) -> None:
        """Uses `memory`, which has `HEAD_BYTES` and room for the largest plan."""
        self._words = memory[:HEAD_BYTES].cast("q")
        self._plan = memory[HEAD_BYTES:]

    def enter(self, phase: Phase, iteration: int) -> None:
        """Records the phase that begins."""
        self._words[_INDEX] = 0
        self._words[_ITERATION] = iteration
        self._words[_PHASE] = phase

    def start_plan(self, iteration: int, plan: bytes) -> None:
        """Records the plan that is executed next; one that is too large is not recorded."""
        self._words[_PLAN_BYTES] = 0
        if len(plan) <= len(self._plan):
            self._plan[: len(plan)] = plan
            self._words[_PLAN_BYTES] = len(plan)
        self.enter(Phase.EXECUTES, iteration)

    def reach(self, index: int) -> None:
        """Records the index of the instruction that is executed next."""
        self._words[_INDEX] = index

    def look(self) -> Standing:
        """Reads the current position of the rank."""
        words = self._words
        return Standing(Phase(words[_PHASE]), words[_ITERATION], words[_INDEX])

    def read_plan(self) -> RankPlan | None:
        """The plan that the rank executed last; None if it cannot be read."""
        try:
            return decode(bytes(self._plan[: self._words[_PLAN_BYTES]]))
        except PlanFormatError:
            return None


def private_position() -> Position:
    """A position in private memory, for a rank that nobody watches."""
    return Position(memoryview(bytearray(HEAD_BYTES)))
