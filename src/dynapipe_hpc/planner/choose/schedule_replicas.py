"""Scheduling of the micro-batches of all replicas, which makes a plan."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.choose.choice import Candidate, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_replica
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaScheduler:
    """Schedules each replica by the rule with which its gradients are reduced first.

    Equal replicas are scheduled once: plans that a search finds share most replicas.
    """

    cost: CostModel
    cluster: Cluster
    rules: Sequence[ScheduleRule]
    _known: dict[tuple[Hashable, tuple[float, ...]], Pipeline] = field(
        default_factory=dict, init=False
    )

    def schedule(self, way: str, replicas: Sequence[PricedReplica]) -> Candidate | Infeasible:
        """Schedules the replicas of a plan."""
        try:
            pipelines = [
                self._pipeline(*each)
                for each in zip(replicas, self._slowness(len(replicas)), strict=True)
            ]
        except InfeasibleScheduleError as error:
            return Infeasible(way, str(error))
        return Candidate(way, pipelines, self.cost)

    def _slowness(self, n_replicas: int) -> list[tuple[float, ...]]:
        """Slowness factors of the stages, by replica; empty if all replicas are equally fast."""
        slowness = self.cost.slowness
        return [()] * n_replicas if slowness is None else list(map(tuple, slowness.tolist()))

    def _pipeline(self, replica: PricedReplica, slowness: tuple[float, ...]) -> Pipeline:
        known = self._known.get((replica.key, slowness))
        if known is not None:
            return known
        costs = replica.costs.slowed(np.array(slowness)) if slowness else replica.costs
        priced = replica._replace(costs=costs)
        scheduled = schedule_replica(priced, self.cost, self.cluster, self.rules)
        self._known[replica.key, slowness] = scheduled
        return scheduled
