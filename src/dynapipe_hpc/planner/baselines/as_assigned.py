"""The plan of a rule that leaves only the schedule open."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.replica_rule import ReplicaRule
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule


@dataclass(frozen=True, slots=True)
class AsAssigned:
    """Schedules micro-batches on the replicas and in the order that a rule gives them.

    Attributes:
        rule: Rule that forms, assigns and orders the micro-batches.
        schedule_rules: Ways to order passes, all of which are tried.
        cost: Predicts time and memory.
        cluster: What the plans are for.
    """

    rule: ReplicaRule
    schedule_rules: Sequence[ScheduleRule]
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """A choice of one plan, see `Chooser`."""
        replicas = self.rule(samples, self.cost, self.cluster)
        costs = [microbatch_costs(replica, self.cost) for replica in replicas]
        scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
        return Choice((scheduler.schedule(str(self.rule), replicas, costs),))
