"""The memory that a plan needs."""

from dataclasses import replace

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.rank_plan import RankPlan


def peak_bytes(plan: RankPlan) -> int:
    """Largest memory of a rank at any moment of its plan, in bytes.

    A micro-batch's stored bytes count from the start of its Forward to the end of its
    Backward or BackwardWeight; transient bytes come on top while a pass runs (see `MemoryPlan`).
    """
    return _kernels.peak_bytes(
        plan.instructions.table,
        np.array(plan.memory.bounds, np.int64),
        np.array(plan.memory.sizes, np.int64),
    )


def stored_peak_bytes(plan: RankPlan) -> int:
    """Largest sum of stored bytes at any moment: what can be counted while a plan runs.

    Without static memory, and without what a pass needs only while it runs.
    """
    none = (0,) * len(plan.microbatches)
    stored = replace(plan.memory, static=0, forward_transient=none, backward_transient=none)
    return peak_bytes(replace(plan, memory=stored))
