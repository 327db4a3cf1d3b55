"""Whether any order of passes can keep within memory."""

import numpy as np

from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def check_each_fits(costs: StageCosts, activation_limit_bytes: FloatArray) -> None:
    """Refuses micro-batches that do not fit on a stage even while they are alone there.

    If all do, an order within the limit exists: one micro-batch after the other.

    Raises:
        InfeasibleScheduleError: Names the first micro-batch and stage.
    """
    needed = activation_bytes(costs)
    fits = np.isfinite(needed) & (needed <= activation_limit_bytes)
    if not fits.all():
        microbatch, stage = np.argwhere(~fits)[0]
        raise InfeasibleScheduleError(
            f"micro-batch {microbatch} alone needs {needed[microbatch, stage]:,.0f} bytes of "
            f"activations on stage {stage}, where {activation_limit_bytes[stage]:,.0f} are free "
            "beside the model; raise cluster.device_memory_bytes, add stages, or lower "
            "data.max_tokens"
        )
