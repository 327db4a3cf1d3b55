"""The end of an iteration: gradients are reduced, then weights updated."""

from collections.abc import Sequence

from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.timeline import Timeline


def iteration_ms(timelines: Sequence[Timeline], cost: CostModel) -> float:
    """When all weights are updated.

    The gradients of a stage are reduced once its last pass has ended on all replicas, while other
    stages still compute. The norm of all gradients is what everybody waits for; then all step.

    Args:
        timelines: One per replica.
        cost: Predicts how long both take.
    """
    return max(reduced_ms(timeline, cost) for timeline in timelines) + cost.step_ms


def reduced_ms(timeline: Timeline, cost: CostModel) -> float:
    """When all gradients are reduced, as far as it is up to one replica.

    Args:
        timeline: Of the replica.
        cost: Predicts how long a stage's reduction takes.
    """
    return float((timeline.end_ms[:, -1] + cost.reduce_ms).max())


def least_update_ms(cost: CostModel, *, may_split: bool) -> float:
    """By what an iteration takes longer than its passes, at least.

    Without split backward passes the last pass is one on the first stage.

    Args:
        cost: Predicts how long both take.
        may_split: Whether backward passes may be split.
    """
    reduce_ms = cost.reduce_ms.min() if may_split else cost.reduce_ms[0]
    return float(reduce_ms + cost.step_ms)
