"""Plans by the planner's later steps, for micro-batches that a test has chosen."""

from collections.abc import Sequence

from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline


def planned_iteration(
    microbatches: Sequence[Sequence[MicroBatch]],
    cluster: Cluster,
    shape: ModelShape,
    schedule: RuleName,
    iteration: int = 0,
) -> list[RankPlan]:
    """The checked plans of all ranks, for the micro-batches of every replica."""
    cost = LinearCost(
        launch_ms=(0.1,) * cluster.n_stages,
        token_ms=tuple(0.01 * (1 + stage) for stage in range(cluster.n_stages)),
    )
    pipelines = [schedule_pipeline(m, cost, cluster, [RULES[schedule]]) for m in microbatches]
    boundaries = equal_shares(shape, cluster).boundaries(shape.architecture)
    plans = rank_plans(iteration, pipelines, cluster, cost, shape.hidden_size, boundaries)
    check_plans(plans)
    return plans
