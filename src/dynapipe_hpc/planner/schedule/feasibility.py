"""Checks that the passes of a schedule keep within memory."""

import numpy as np

from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError

ROUNDING = 1e-12
"""Relative error of sums of bytes, which are fractions where costs are interpolated."""


def check_each_fits(costs: StageCosts, activation_limit_bytes: FloatArray) -> None:
    """Refuses micro-batches that do not fit on a stage even while they are alone there.

    If all fit, an order within the limit (n_stages,) exists: one micro-batch after the other.
    Raises `InfeasibleScheduleError`, which names the first that does not fit, and the stage.
    """
    needed_bytes = activation_bytes(costs)
    may_run = np.isfinite(needed_bytes) & (needed_bytes <= activation_limit_bytes)
    if may_run.all():
        return
    microbatch, stage = np.argwhere(~may_run)[0]
    raise InfeasibleScheduleError(
        f"micro-batch {microbatch} alone needs {needed_bytes[microbatch, stage]:,.0f} bytes of "
        f"activations on stage {stage}, where the model leaves "
        f"{activation_limit_bytes[stage]:,.0f} free; raise cluster.device_memory_bytes, add "
        "stages, or lower data.max_tokens"
    )


def check_whole(costs: StageCosts) -> None:
    """Refuses slices for a fixed order: their backward passes run in the reverse order."""
    if costs.later_slices is not None:
        raise InfeasibleScheduleError("slices of samples need an adaptive schedule")


def check_peaks(rule: str, peak_bytes: FloatArray, device_memory_bytes: int) -> None:
    """Refuses a rule's schedule in which a stage needs more memory than its device has."""
    stage = int(peak_bytes.argmax())
    if peak_bytes[stage] > (1 + ROUNDING) * device_memory_bytes:
        raise InfeasibleScheduleError(
            f"{rule} needs {peak_bytes[stage]:,.0f} bytes on stage {stage}, but "
            f"cluster.device_memory_bytes is {device_memory_bytes:,}; add 'cyclic' to "
            "planner.schedule.rules, or make smaller micro-batches"
        )
