"""Position of a rank in its iteration, in memory that other processes can read."""

from dataclasses import dataclass
from enum import IntEnum

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
    """Position of a rank at the moment when it was read.

    Attributes:
        phase: Phase of the rank.
        iteration: Number of the iteration.
        index: Index of the instruction that the host executes; after the last, their number.
        on_device: Index of the instruction that the device executes, which may be an earlier one.
    """

    phase: Phase
    iteration: int
    index: int
    on_device: int


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
