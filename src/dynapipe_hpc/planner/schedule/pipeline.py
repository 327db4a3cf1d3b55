"""A pipeline: the scheduled micro-batches of a replica."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms, reduced_ms


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """One replica's iteration, without the update at its end.

    `microbatches`: Micro-batches in the order in which they enter the pipeline. `schedule`: The
    order of passes on every stage.
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

    `microbatches`: Micro-batches of one replica, in the order in which they enter the pipeline.
    `rules`: Rules to try, at least one; ties go to the first. Raises `InfeasibleScheduleError`: No
    rule keeps within memory; gives the reason for each.
    """
    return schedule_priced(
        microbatches, microbatch_costs(microbatches, cost), cost, cluster, rules=rules
    )


def schedule_priced(
    microbatches: Sequence[MicroBatch],
    costs: StageCosts,
    cost: CostModel,
    cluster: Cluster,
    *,
    rules: Sequence[ScheduleRule],
) -> Pipeline:
    """Schedules micro-batches whose costs are known, see `schedule_pipeline`."""
    room_bytes = activation_room_bytes(cost, cluster)
    costs = replace(costs, reduce_ms=extra_reduce_ms(cost))
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
    return min(pipelines, key=lambda pipeline: reduced_ms(pipeline.timeline, cost))
