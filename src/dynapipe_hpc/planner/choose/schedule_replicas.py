"""Micro-batches of all replicas become a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_priced
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaScheduler:
    """Schedules each replica by the rule that ends first.

    Equal replicas are scheduled once: plans that a search finds share most of theirs.

    Attributes:
        cost: Cost model, for what the model itself takes.
        cluster: The cluster, with memory limits and the link that slows a schedule.
        rules: Schedule rules to try.
    """

    cost: CostModel
    cluster: Cluster
    rules: Sequence[ScheduleRule]
    _known: dict[tuple[MicroBatch, ...], Pipeline] = field(default_factory=dict, init=False)

    def schedule(
        self, way: str, replicas: Sequence[Sequence[MicroBatch]], costs: Sequence[StageCosts]
    ) -> Candidate | Infeasible:
        """Schedules the replicas of a plan.

        Args:
            way: Human-readable description of how the micro-batches were made.
            replicas: Micro-batches of every replica, in the order in which they enter the pipeline.
            costs: Costs of the micro-batches of every replica.
        """
        try:
            pipelines = [
                self._pipeline(tuple(microbatches), priced)
                for microbatches, priced in zip(replicas, costs, strict=True)
            ]
        except InfeasibleScheduleError as error:
            return Infeasible(way, str(error))
        return Candidate(way, pipelines, self.cost)

    def _pipeline(self, microbatches: tuple[MicroBatch, ...], costs: StageCosts) -> Pipeline:
        known = self._known.get(microbatches)
        if known is not None:
            return known
        found = schedule_priced(microbatches, costs, self.cost, self.cluster, self.rules)
        self._known[microbatches] = found
        return found
