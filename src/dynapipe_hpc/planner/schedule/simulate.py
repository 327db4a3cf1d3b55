"""Simulation of a schedule in time: its timeline, and when weights are updated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule, kernel_link


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A schedule in time, in ms from the start of the iteration.

    Arrays of shape (n_stages, n_passes) hold the passes of each stage in the order of the
    schedule.

    `send_start_ms`: Start of the transfer of what the pass produced, same shape; NaN where nothing
    is sent: after F on the last stage, B on the first, and W. `send_end_ms`: End of that transfer,
    when the neighbouring stage has the data, same shape.
    """

    start_ms: FloatArray  # start of each pass, shape (n_stages, n_passes)
    end_ms: FloatArray  # end of each pass, same shape
    send_start_ms: FloatArray
    send_end_ms: FloatArray
    peak_bytes: FloatArray  # peak memory of each stage, static memory included, shape (n_stages,)
    busy_ms: FloatArray  # time in which each stage computes, shape (n_stages,)
    makespan_ms: float


class ScheduleDeadlockError(ValueError):
    """A schedule in which stages wait for each other forever."""


def simulate(
    schedule: Schedule, costs: StageCosts, link: Link, static_bytes: FloatArray
) -> Timeline:
    """Finds when each pass and each transfer starts and ends, and the memory that stages need.

    A pass starts when its stage is free and its input has arrived. Its output is sent at once,
    after earlier transfers of the stage in the same direction (in any direction if the link is
    not full duplex). The input of W is available when B of the same stage ends; W sends nothing.

    Args:
        schedule: Schedule with F and B of each micro-batch on every stage, and W of all or none; or
            with F alone.
        costs: Costs of the micro-batches.
        link: Link between neighbouring stages.
        static_bytes: Memory that is always occupied, shape (n_stages,).

    Raises:
        ScheduleDeadlockError: At some point no pass can start.
    """
    result = _kernels.simulate(schedule.codes, costs.checked, static_bytes, kernel_link(link))
    if result.makespan_ms == np.inf and (result.n_started < schedule.codes.shape[1]).any():
        raise _deadlock_error(schedule, result.n_started)
    return Timeline(
        start_ms=result.start_ms,
        end_ms=result.end_ms,
        send_start_ms=result.send_start_ms,
        send_end_ms=result.send_end_ms,
        peak_bytes=result.peak_bytes,
        busy_ms=result.busy_ms,
        makespan_ms=result.makespan_ms,
    )


def _deadlock_error(schedule: Schedule, n_started: npt.NDArray[np.uint64]) -> ScheduleDeadlockError:
    waiting = [
        f"stage {stage} waits for the input of {passes[n]}"
        for stage, (passes, n) in enumerate(zip(schedule.passes, n_started.tolist(), strict=True))
        if n < len(passes)
    ]
    return ScheduleDeadlockError(
        f"no pass can start: {', '.join(waiting)}; the orders of the stages contradict each other"
    )


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
