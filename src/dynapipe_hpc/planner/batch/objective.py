"""Measures by which micro-batches are compared before they are scheduled."""

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts


def bottleneck_ms(costs: StageCosts) -> FloatArray:
    """Forward and backward time on each micro-batch's slowest stage, shape (n_microbatches,).

    Each micro-batch has its own slowest stage. So a sum over micro-batches is never less than the
    work of the busiest stage, and equals it if that stage is the slowest for every micro-batch.
    """
    return np.asarray(costs.work_ms.max(axis=1))


def fill_ms(costs: StageCosts) -> FloatArray:
    """Forward and backward time on all stages but the slowest, shape (n_microbatches,).

    This is the time to reach the slowest stage and to come back from it; with n equal stages it is
    n - 1 times the time on one, as in equation 1 of the paper.
    """
    all_ms: FloatArray = costs.work_ms.sum(axis=1)
    np.subtract(all_ms, bottleneck_ms(costs), out=all_ms, where=np.isfinite(all_ms))
    return all_ms
