"""Peak memory of a plan."""

from dataclasses import replace

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.rank_plan import RankPlan


def peak_bytes(plan: RankPlan) -> int:
    """Peak memory of a rank during its plan, in bytes.

    The stored bytes of a micro-batch count from the start of its Forward to the end of its
    Backward or BackwardWeight; transient bytes are added while a pass runs (see `MemoryPlan`).
    """
    return _kernels.peak_bytes(
        plan.instructions.table,
        np.array(plan.memory.bounds, np.int64),
        np.array(plan.memory.sizes, np.int64),
    )


def stored_peak_bytes(plan: RankPlan) -> int:
    """Peak sum of stored bytes, which can be counted while a plan runs.

    It excludes static memory and transient bytes.
    """
    none = (0,) * len(plan.microbatches)
    stored = replace(plan.memory, static=0, forward_transient=none, backward_transient=none)
    return peak_bytes(replace(plan, memory=stored))
