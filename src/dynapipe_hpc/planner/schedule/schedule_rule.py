"""The order in which every stage runs its passes."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts


class Direction(IntEnum):
    """Which way a pass goes through the pipeline."""

    FORWARD = 0
    BACKWARD = 1


class Pass(NamedTuple):
    """One micro-batch going through one stage in one direction."""

    direction: Direction
    microbatch: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per stage, its passes in order: each micro-batch once forward and once backward."""

    passes: tuple[tuple[Pass, ...], ...]


class ScheduleRule(Protocol):
    """Orders the passes of a replica's micro-batches.

    Contract: every pass exactly once, forward before backward; where memory allows it, no
    stage ever keeps more than its limit.
    """

    def __call__(self, costs: StageCosts, activation_limit_bytes: FloatArray) -> Schedule:
        """Orders micro-batches 0, 1, ... which enter the pipeline in this order.

        Args:
            costs: Of the replica's micro-batches.
            activation_limit_bytes: Shape (n_stages,): device memory less static memory.

        Raises:
            InfeasibleScheduleError: No order within the limit was found.
        """
        ...
