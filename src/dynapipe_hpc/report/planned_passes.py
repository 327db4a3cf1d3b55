"""Passes of plans with their predicted times and what their micro-batches are."""

from collections.abc import Iterator
from typing import NamedTuple

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.instruction import Backward, BackwardInput, BackwardWeight, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan

AnyPass = Forward | Backward | BackwardInput | BackwardWeight


class PlannedPass(NamedTuple):
    """A pass of a plan.

    Attributes:
        step: The instruction.
        microbatch: Micro-batch that passes.
        start_ms: Predicted start, from the start of the iteration.
        end_ms: Predicted end.
    """

    step: AnyPass
    microbatch: MicroBatch
    start_ms: float
    end_ms: float


def planned_passes(plan: RankPlan) -> Iterator[PlannedPass]:
    """The passes of a rank in the order of execution."""
    steps = [step for step in plan.instructions if isinstance(step, AnyPass)]
    for step, (start_ms, end_ms) in zip(steps, plan.prediction.passes_ms, strict=True):
        yield PlannedPass(step, plan.microbatches[step.microbatch], start_ms, end_ms)
