"""Micro-batches of all replicas become a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_priced
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule


class _Replica(NamedTuple):
    """Micro-batches of a replica in order, and factors by which its stages are slower."""

    microbatches: tuple[MicroBatch, ...]
    slowness: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaScheduler:
    """Schedules each replica by the rule whose gradients are reduced first.

    Equal replicas are scheduled once: plans that a search finds share most of theirs.
    """

    cost: CostModel
    cluster: Cluster
    rules: Sequence[ScheduleRule]
    _known: dict[_Replica, Pipeline] = field(default_factory=dict, init=False)

    def schedule(
        self, way: str, replicas: Sequence[Sequence[MicroBatch]], costs: Sequence[StageCosts]
    ) -> Candidate | Infeasible:
        """Schedules the replicas of a plan."""
        try:
            pipelines = [
                self._pipeline(_Replica(tuple(microbatches), slowness), priced)
                for microbatches, priced, slowness in zip(
                    replicas, costs, self._slowness(len(replicas)), strict=True
                )
            ]
        except InfeasibleScheduleError as error:
            return Infeasible(way, str(error))
        return Candidate(way, pipelines, self.cost)

    def _slowness(self, n_replicas: int) -> list[tuple[float, ...]]:
        """Factors of the stages of every replica; none where replicas are equally fast."""
        slowness = self.cost.slowness
        return [()] * n_replicas if slowness is None else list(map(tuple, slowness.tolist()))

    def _pipeline(self, replica: _Replica, costs: StageCosts) -> Pipeline:
        known = self._known.get(replica)
        if known is not None:
            return known
        if replica.slowness:
            costs = costs.slowed(np.array(replica.slowness))
        scheduled = schedule_priced(
            replica.microbatches, costs, self.cost, self.cluster, rules=self.rules
        )
        self._known[replica] = scheduled
        return scheduled
