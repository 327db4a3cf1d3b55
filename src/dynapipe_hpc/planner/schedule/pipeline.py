"""The micro-batches of a replica, scheduled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.refine import refine
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.update import reduced_ms

FEWEST_MOVES = 1000
"""Of a schedule, for which it is worth the time to move passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """One replica's iteration, but for the update at its end.

    Attributes:
        microbatches: In the order in which they enter the pipeline.
        costs: Of the micro-batches.
        rule: What the schedule was made by; single passes may have been moved since.
        schedule: The order of passes on every stage.
        timeline: The schedule as simulated.
    """

    microbatches: tuple[MicroBatch, ...]
    costs: StageCosts
    rule: ScheduleRule
    schedule: Schedule
    timeline: Timeline


def schedule_pipeline(
    microbatches: Sequence[MicroBatch],
    cost: CostModel,
    cluster: Cluster,
    rules: Sequence[ScheduleRule],
) -> Pipeline:
    """Schedules micro-batches by the rule whose gradients are reduced first in the simulation.

    Args:
        microbatches: Of one replica, in the order in which they enter the pipeline.
        cost: Predicts their time and memory.
        cluster: Its memory limits and its link slows a schedule.
        rules: To be tried, at least one; the first of equals is taken.

    Raises:
        InfeasibleScheduleError: No rule keeps within memory; says why for each.
    """
    return schedule_priced(microbatches, microbatch_costs(microbatches, cost), cost, cluster, rules)


def schedule_priced(
    microbatches: Sequence[MicroBatch],
    costs: StageCosts,
    cost: CostModel,
    cluster: Cluster,
    rules: Sequence[ScheduleRule],
) -> Pipeline:
    """As `schedule_pipeline`, for micro-batches whose costs are known.

    Args:
        microbatches: Of one replica, in the order in which they enter the pipeline.
        costs: Of the micro-batches.
        cost: Predicts what the model itself takes.
        cluster: Its memory limits and its link slows a schedule.
        rules: To be tried, at least one; the first of equals is taken.

    Raises:
        InfeasibleScheduleError: No rule keeps within memory; says why for each.
    """
    room_bytes = activation_room_bytes(cost, cluster)
    pipelines: list[Pipeline] = []
    reasons: list[str] = []
    for rule in rules:
        try:
            schedule = rule(costs, room_bytes, cluster.link)
        except InfeasibleScheduleError as error:
            reasons.append(str(error))
            continue
        timeline = simulate(schedule, costs, cluster.link, cost.static_bytes)
        pipelines.append(Pipeline(tuple(microbatches), costs, rule, schedule, timeline))
    if not pipelines:
        raise InfeasibleScheduleError("; ".join(dict.fromkeys(reasons)))
    return _first(pipelines, cost)


def refine_pipeline(
    pipeline: Pipeline, cost: CostModel, cluster: Cluster, *, n_passes: int, seed: int
) -> Pipeline:
    """Moves single passes of the schedule for an earlier end, see `refine.refine`.

    Args:
        pipeline: Within the limit on memory.
        cost: By which it was scheduled.
        cluster: For which it was scheduled.
        n_passes: To simulate at most. A schedule so long that this makes few moves stays.
        seed: Of the changes.
    """
    n_moves = n_passes // pipeline.schedule.codes.size
    if n_moves < FEWEST_MOVES:
        return pipeline
    room_bytes = activation_room_bytes(cost, cluster)
    schedule = refine(
        pipeline.schedule, pipeline.costs, room_bytes, cluster.link, n_moves=n_moves, seed=seed
    )
    timeline = simulate(schedule, pipeline.costs, cluster.link, cost.static_bytes)
    return _first([pipeline, replace(pipeline, schedule=schedule, timeline=timeline)], cost)


def _first(pipelines: Sequence[Pipeline], cost: CostModel) -> Pipeline:
    """The one whose gradients are reduced first; the first of equals."""
    return min(pipelines, key=lambda pipeline: reduced_ms(pipeline.timeline, cost))
