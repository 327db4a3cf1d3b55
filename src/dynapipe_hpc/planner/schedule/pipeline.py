"""A pipeline: the scheduled micro-batches of a replica."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_each_fits, check_peaks
from dynapipe_hpc.planner.schedule.rules import name_of
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import Timeline, extra_reduce_ms, reduced_ms, simulate


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One replica's iteration, without the update at its end."""

    form: Callable[[], Sequence[MicroBatch]]  # see `PricedReplica`
    costs: StageCosts
    rule: ScheduleRule
    schedule: Schedule  # the order of passes on every stage
    timeline: Timeline

    @cached_property
    def microbatches(self) -> tuple[MicroBatch, ...]:
        """Micro-batches in the order in which they enter the pipeline."""
        return tuple(self.form())


def schedule_pipeline(
    microbatches: Sequence[MicroBatch],
    cost: CostModel,
    cluster: Cluster,
    rules: Sequence[ScheduleRule],
) -> Pipeline:
    """Schedules micro-batches by the rule with which the simulation reduces gradients soonest.

    `microbatches`: Micro-batches of one replica, in the order in which they enter the pipeline.
    `rules`: Rules to try, at least one; ties go to the first. Raises `InfeasibleScheduleError`: No
    rule keeps within memory; gives the reason for each.
    """
    return schedule_replica(PricedReplica.formed(microbatches, cost), cost, cluster, rules)


def schedule_replica(
    replica: PricedReplica, cost: CostModel, cluster: Cluster, rules: Sequence[ScheduleRule]
) -> Pipeline:
    """Schedules micro-batches whose costs are known, see `schedule_pipeline`."""
    room_bytes = activation_room_bytes(cost, cluster)
    costs = replace(replica.costs, reduce_ms=extra_reduce_ms(cost))
    check_each_fits(costs, room_bytes)
    pipelines: list[Pipeline] = []
    reasons: list[str] = []
    for rule in rules:
        try:
            schedule = rule(costs, room_bytes, cluster.link)
            timeline = simulate(schedule, costs, cluster.link, cost.static_bytes)
            check_peaks(name_of(rule), timeline.peak_bytes, cluster.device_memory_bytes)
        except InfeasibleScheduleError as error:
            reasons.append(str(error))
            continue
        pipelines.append(Pipeline(replica.form, costs, rule, schedule, timeline))
    if not pipelines:
        raise InfeasibleScheduleError("; ".join(dict.fromkeys(reasons)))
    return min(pipelines, key=lambda pipeline: reduced_ms(pipeline.timeline, cost))
