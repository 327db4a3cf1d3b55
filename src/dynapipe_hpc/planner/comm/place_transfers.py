"""Placement of transfers: instructions from a simulated schedule, free of deadlock."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.timeline import Timeline


def place_transfers(
    schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> list[InstructionRows]:
    """Writes the instructions of every stage of one replica.

    Every transfer starts on both sides when the pass that produces it ends in the simulation;
    so both sides start their transfers in the same order, and the plan cannot deadlock. Waits
    come as late as possible, and a receive takes the lowest free slot. For details see
    cpp/include/dynapipe/plan/place_transfers.hpp.

    Args:
        schedule: The passes of every stage.
        timeline: Times of the passes.
        peers: Rank of each stage.

    Returns:
        Instructions of each stage, which end with ReduceGradients and StepOptimizer, unless the
        schedule has forward passes only.

    Source:
        Paper, section "Communication Planning".
    """
    rows = _kernels.place_transfers(schedule.codes, timeline.end_ms, np.array(peers, np.uint32))
    return list(map(InstructionRows, rows))
