"""The two numbers by which micro-batches are compared before they are scheduled."""

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts


def bottleneck_ms(costs: StageCosts) -> FloatArray:
    """Forward and backward time on each micro-batch's slowest stage, shape (n_microbatches,).

    The slowest stage is taken per micro-batch, so that a sum over micro-batches is never less
    than the work of any one stage; it equals the most work of a stage where one stage is
    slowest throughout.
    """
    return np.asarray(costs.work_ms.max(axis=1))


def fill_ms(costs: StageCosts) -> FloatArray:
    """Forward and backward time on all stages but the slowest, shape (n_microbatches,).

    What it takes to reach the slowest stage and to come back from it; with n equal stages
    n - 1 times the time on one, as in the paper's equation 1.
    """
    return np.asarray(costs.work_ms.sum(axis=1) - bottleneck_ms(costs))
