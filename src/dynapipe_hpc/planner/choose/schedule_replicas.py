"""Micro-batches of all replicas become a plan."""

from collections.abc import Sequence

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import schedule_priced
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule


def schedule_replicas(
    way: str,
    replicas: Sequence[Sequence[MicroBatch]],
    costs: Sequence[StageCosts],
    cost: CostModel,
    cluster: Cluster,
    rules: Sequence[ScheduleRule],
) -> Candidate | Infeasible:
    """Schedules each replica by the rule that ends first.

    Args:
        way: How the micro-batches came about, for people.
        replicas: Micro-batches of every replica, in the order in which they enter the pipeline.
        costs: Costs of the micro-batches of every replica.
        cost: Predicts what the model itself takes.
        cluster: Memory limits, and the link between stages.
        rules: Schedule rules to try.
    """
    try:
        pipelines = [
            schedule_priced(microbatches, priced, cost, cluster, rules)
            for microbatches, priced in zip(replicas, costs, strict=True)
        ]
    except InfeasibleScheduleError as error:
        return Infeasible(way, str(error))
    return Candidate(way, pipelines, cost)
