"""From a simulated schedule to instructions, with sends and receives where they cannot hang."""

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
    come as late as they can, and a receive takes the lowest free slot. The header of the
    kernel, cpp/include/dynapipe/place_transfers.hpp, says more.

    Args:
        schedule: The passes of every stage.
        timeline: When they end; every pass but those for gradients of weights takes time.
        peers: The rank of each stage.

    Returns:
        Per stage, its instructions, which end with ReduceGradients and StepOptimizer.

    Source:
        Paper, section "Communication Planning".
    """
    rows = _kernels.place_transfers(schedule.codes, timeline.end_ms, np.array(peers, np.uint32))
    return list(map(InstructionRows, rows))
