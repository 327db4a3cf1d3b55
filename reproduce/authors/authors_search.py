"""The authors' search for mode, order and schedule of a replica's micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, check_each_fits
from dynapipe_hpc.planner.schedule.rules import cyclic, one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import simulate
from reproduce.authors.injection_orders import injection_orders


class _Order(NamedTuple):
    microbatches: tuple[MicroBatch, ...]
    costs: StageCosts


@dataclass(frozen=True, slots=True)
class AuthorsSearch:
    """Simulation of every mode, some orders and two schedules; the fastest that fits is taken.

    Schedules are first made without a memory limit. Only if no cyclic one of a mode fits, they are
    made again within the limit.

    Attributes:
        seed: Seed of the orders.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact.
    """

    seed: int = 0

    def __call__(
        self, microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster
    ) -> Pipeline:
        """Schedules the micro-batches of one replica.

        Args:
            microbatches: Micro-batches in the order in which they were cut; their mode is ignored.
            cost: Cost model in every mode.
            cluster: The cluster, with memory and link.

        Raises:
            InfeasibleScheduleError: No mode keeps within memory.
        """
        candidates = [
            pipeline
            for orders in self._orders_of_modes(microbatches, cost, cluster)
            for pipeline in (*_cyclic(orders, cost, cluster), *_one_f_one_b(orders, cost, cluster))
        ]
        if not candidates:
            room_bytes = activation_room_bytes(cost, cluster)
            check_each_fits(microbatch_costs(microbatches, cost), room_bytes)
        return min(candidates, key=lambda pipeline: pipeline.timeline.makespan_ms)

    def _orders_of_modes(
        self, microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster
    ) -> Iterator[list[_Order]]:
        """The orders to try, for every mode in which each micro-batch fits alone."""
        room_bytes = activation_room_bytes(cost, cluster)
        for mode in cost.recompute_modes:
            in_mode = [replace(m, recompute=mode) for m in microbatches]
            costs = microbatch_costs(in_mode, cost)
            if fits(costs, room_bytes).all():
                yield [
                    _Order(tuple(in_mode[i] for i in order), costs.take(order))
                    for order in injection_orders(costs, self.seed)
                ]


def _cyclic(orders: Sequence[_Order], cost: CostModel, cluster: Cluster) -> list[Pipeline]:
    """Cyclic schedules without a memory limit; within the limit if none of those fits."""
    room_bytes = activation_room_bytes(cost, cluster)
    return _without_limit(orders, cyclic, cost, cluster) or [
        _simulated(order, cyclic, cyclic(order.costs, room_bytes), cost=cost, cluster=cluster)
        for order in orders
    ]


def _one_f_one_b(orders: Sequence[_Order], cost: CostModel, cluster: Cluster) -> list[Pipeline]:
    return _without_limit(orders, one_f_one_b, cost, cluster) if cluster.n_stages > 1 else []


def _without_limit(
    orders: Sequence[_Order], rule: ScheduleRule, cost: CostModel, cluster: Cluster
) -> list[Pipeline]:
    """Pipelines scheduled without a memory limit that nevertheless fit."""
    # Without a limit, passes are in the same order whatever the micro-batches cost.
    schedule = rule(orders[0].costs, np.full(cluster.n_stages, np.inf))
    pipelines = (_simulated(order, rule, schedule, cost=cost, cluster=cluster) for order in orders)
    limit_bytes = cluster.device_memory_bytes
    return [p for p in pipelines if (p.timeline.peak_bytes <= limit_bytes).all()]


def _simulated(
    order: _Order, rule: ScheduleRule, schedule: Schedule, *, cost: CostModel, cluster: Cluster
) -> Pipeline:
    timeline = simulate(schedule, order.costs, cluster.link, cost.static_bytes)
    return Pipeline(lambda: order.microbatches, order.costs, rule, schedule, timeline)
