"""The memory that a plan needs."""

from dataclasses import replace

from dynapipe_hpc.plan.instruction import Backward, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan


def peak_bytes(plan: RankPlan) -> int:
    """Largest memory of a rank at any moment of its plan, in bytes.

    A micro-batch's stored bytes count from the start of its Forward to the end of its
    Backward; transient bytes come on top while the pass runs (see `MemoryPlan`).
    """
    memory = plan.memory
    held = peak = memory.static
    for instruction in plan.instructions:
        match instruction:
            case Forward(i):
                held += memory.stored[i]
                peak = max(peak, held + memory.forward_transient[i])
            case Backward(i):
                peak = max(peak, held + memory.backward_transient[i])
                held -= memory.stored[i]
    return peak


def stored_peak_bytes(plan: RankPlan) -> int:
    """Largest sum of stored bytes at any moment: what can be counted while a plan runs.

    Without static memory, and without what a pass needs only while it runs.
    """
    none = (0,) * len(plan.microbatches)
    stored = replace(plan.memory, static=0, forward_transient=none, backward_transient=none)
    return peak_bytes(replace(plan, memory=stored))
