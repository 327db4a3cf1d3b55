"""The best plan of batch rules, as they make it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule


@dataclass(frozen=True, slots=True)
class BestOfRules:
    """Forms micro-batches by every batch rule, and schedules them by every schedule rule.

    Attributes:
        batch_rules: Ways to form micro-batches, all of which are tried.
        schedule_rules: Ways to order passes, all of which are tried.
        cost: Predicts time and memory.
        cluster: What the plans are for.
    """

    batch_rules: Sequence[BatchRule]
    schedule_rules: Sequence[ScheduleRule]
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of all rules, see `Chooser`."""
        return Choice(tuple(self._tried(samples)))

    def _tried(self, samples: Sequence[Sample]) -> Iterator[Candidate | Infeasible]:
        rules: dict[tuple[MicroBatch, ...], list[str]] = {}  # rules often agree
        for rule in self.batch_rules:
            formed = rule(samples, self.cost, self.cluster)
            for microbatches in more_recompute(formed, self.cost):
                rules.setdefault(microbatches, []).append(str(rule))
        scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
        for microbatches, agreeing in rules.items():
            replicas = balance_replicas(microbatches, self.cost, self.cluster.n_replicas)
            chosen = [[microbatches[i] for i in replica] for replica in replicas]
            costs = [microbatch_costs(replica, self.cost) for replica in chosen]
            way = " = ".join(dict.fromkeys(agreeing))
            yield scheduler.schedule(way, chosen, costs)


def more_recompute(
    microbatches: Sequence[MicroBatch], cost: CostModel
) -> Iterator[tuple[MicroBatch, ...]]:
    """The same micro-batches, for each mode of the cost model with at least that mode.

    A micro-batch that takes longer but keeps less memory lets later ones start earlier; only the
    simulation shows which is better. Modes in which some micro-batch was not measured are left out.
    """
    for mode in cost.recompute_modes:
        changed = tuple(replace(m, recompute=max(m.recompute, mode)) for m in microbatches)
        if np.isfinite(microbatch_costs(changed, cost).work_ms).all():
            yield changed
