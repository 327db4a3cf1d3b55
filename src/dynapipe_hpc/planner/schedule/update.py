"""The end of an iteration: gradients are reduced, then weights updated."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.schedule.simulate import Timeline


def iteration_ms(timelines: Sequence[Timeline], cost: CostModel) -> float:
    """Time at which all weights are updated.

    The gradients of a stage are reduced (data-parallel all-reduce) once its last pass has ended on
    all replicas, while other stages still compute. All ranks wait for the norm of all gradients;
    then all make their optimizer step.
    """
    return max(reduced_ms(timeline, cost) for timeline in timelines) + cost.step_ms


def reduced_ms(timeline: Timeline, cost: CostModel) -> float:
    """Time at which all gradients could be reduced if only one replica counted."""
    return float((timeline.end_ms[:, -1] + cost.reduce_ms).max())


def extra_reduce_ms(cost: CostModel) -> FloatArray:
    """Times by which stages take longer to reduce gradients than the fastest stage.

    Only these differences affect the choice of a plan: the shared part follows every plan.

    Returns times in ms, shape (n_stages,).
    """
    return np.ascontiguousarray(cost.reduce_ms - cost.reduce_ms.min(), np.float64)
