"""Schedule of an evaluation: forward passes, no backward passes."""

import numpy as np

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_each_fits
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, PassKind, Schedule


def forward_only(
    costs: StageCosts, activation_limit_bytes: FloatArray, _link: Link = INSTANT
) -> Schedule:
    """Forward passes of all micro-batches on every stage, in the order in which they enter.

    Args:
        costs: Costs of the replica's micro-batches, which keep nothing after their forward pass.
        activation_limit_bytes: Device memory less static memory, shape (n_stages,).

    Raises:
        InfeasibleScheduleError: A micro-batch does not fit on a stage.
    """
    check_each_fits(costs, activation_limit_bytes, may_slice=True)
    codes = len(PassKind) * np.arange(costs.n_microbatches, dtype=np.int32) + PassKind.FORWARD
    return Schedule(np.tile(codes.astype(np.int32), (costs.n_stages, 1)))
