"""Checks that the passes of a schedule keep within memory."""

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, Schedule


def check_each_fits(
    costs: StageCosts, activation_limit_bytes: FloatArray, *, may_slice: bool = False
) -> None:
    """Refuses micro-batches that do not fit on a stage even while they are alone there.

    If all fit, an order within the limit exists: one micro-batch after the other.

    `activation_limit_bytes`: Device memory less static memory, shape (n_stages,). `may_slice`:
    Whether slices may be among them. Slices go back in another order than they come, which a fixed
    order of passes does not allow. Raises `InfeasibleScheduleError`: A micro-batch does not fit
    (the message names the first one and the stage), or there are slices that may not be.
    """
    if costs.later_slices is not None and not may_slice:
        raise InfeasibleScheduleError("slices of samples need an adaptive schedule")
    misfit = _kernels.first_misfit(costs.checked, activation_limit_bytes)
    if misfit is not None:
        raise InfeasibleScheduleError(
            f"micro-batch {misfit.microbatch} alone needs {misfit.needed_bytes:,.0f} bytes of "
            f"activations on stage {misfit.stage}, where "
            f"{activation_limit_bytes[misfit.stage]:,.0f} are free beside the model; raise "
            "cluster.device_memory_bytes, add stages, or lower data.max_tokens"
        )


def check_peaks(
    rule: str, schedule: Schedule, costs: StageCosts, activation_limit_bytes: FloatArray
) -> None:
    """Refuses a schedule in which a stage needs more than its limit.

    `schedule`: The schedule, from a rule with a fixed order. `activation_limit_bytes`: Device
    memory less static memory, shape (n_stages,). Raises `InfeasibleScheduleError`: A stage needs
    too much; names the rule and the stage that exceeds its limit most.
    """
    peaks = _kernels.activation_peaks(schedule.codes, costs.checked)
    stage = int(np.argmax(peaks - activation_limit_bytes))
    if peaks[stage] > activation_limit_bytes[stage]:
        raise InfeasibleScheduleError(
            f"{rule} needs {peaks[stage]:,.0f} bytes of activations on stage {stage}, where "
            f"{activation_limit_bytes[stage]:,.0f} are free beside the model; add 'cyclic' to "
            "planner.schedule.rules, or make smaller micro-batches"
        )
