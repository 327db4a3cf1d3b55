"""A pipeline: the scheduled micro-batches of a replica."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_bytes, activation_room_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.rules import name_of
from dynapipe_hpc.planner.schedule.schedule_rule import (
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import Timeline, extra_reduce_ms, reduced_ms, simulate

ROUNDING = 1e-12
"""Relative error of sums of bytes, which are fractions where costs are interpolated."""


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


def schedule_replica(
    replica: PricedReplica, cost: CostModel, cluster: Cluster, rules: Sequence[ScheduleRule]
) -> Pipeline:
    """Schedules a replica by the rule with which the simulation reduces gradients soonest.

    `rules`: Rules to try, at least one; ties go to the first. Raises `InfeasibleScheduleError`: No
    rule keeps within memory; gives the reason for each.
    """
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


def check_peaks(rule: str, peak_bytes: FloatArray, device_memory_bytes: int) -> None:
    """Refuses a rule's schedule in which a stage needs more memory than its device has."""
    stage = int(peak_bytes.argmax())
    if peak_bytes[stage] > (1 + ROUNDING) * device_memory_bytes:
        raise InfeasibleScheduleError(
            f"{rule} needs {peak_bytes[stage]:,.0f} bytes on stage {stage}, but "
            f"cluster.device_memory_bytes is {device_memory_bytes:,}; add 'cyclic' to "
            "planner.schedule.rules, or make smaller micro-batches"
        )
