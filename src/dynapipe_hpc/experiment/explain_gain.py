"""What the schedule of a plan gains over the plainest one."""

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choice import Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def explain_gain(choice: Choice, cost: CostModel, cluster: Cluster) -> str:
    """How long 1F1B takes for the chosen micro-batches, in the chosen order, beside the plan."""
    try:
        plain = [
            schedule_pipeline(pipeline.microbatches, cost, cluster, [one_f_one_b])
            for pipeline in choice.pipelines
        ]
    except InfeasibleScheduleError as error:
        return f"the same micro-batches in 1F1B: infeasible: {error}"
    plain_ms = max(pipeline.timeline.makespan_ms for pipeline in plain)
    chosen_ms = choice.best.makespan_ms
    return (
        f"the same micro-batches in 1F1B: {plain_ms:,.1f} ms, "
        f"{100 * (plain_ms / chosen_ms - 1):z.1f} % more than the {chosen_ms:,.1f} ms of the plan"
    )
