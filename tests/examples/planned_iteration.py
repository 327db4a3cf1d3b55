"""Plans by the planner's later steps, for micro-batches that a test has chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import linear_cost, schedule_pipeline
from tests.examples.stage_costs import schedule_of
from tests.oracles.list_schedule import ListSchedule

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.make_plans import rank_plans
from dynapipe_hpc.planner.schedule.rules import RULES, SPLIT_RULES, one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    Pass,
    PassKind,
    Schedule,
    ScheduleRule,
)


def weights_last(costs: StageCosts, limit: FloatArray, link: Link = INSTANT, /) -> Schedule:
    """1F1B whose weights get all their gradients at the end, the latest micro-batch's first."""
    whole = one_f_one_b(costs, limit, link).passes
    later = tuple(Pass(PassKind.WEIGHT, i) for i in reversed(range(costs.n_microbatches)))
    return schedule_of(passes + later for passes in whole)


def threes(costs: StageCosts, limit: FloatArray, link: Link = INSTANT, /) -> Schedule:
    """Of every three micro-batches the last returns first, as if they were slices."""
    later = np.arange(costs.n_microbatches)[::-1].astype(np.uint32) % 3
    sliced = replace(costs, later_slices=later)
    return ListSchedule(sliced, np.full_like(limit, np.inf), link, split_backward=True).schedule


RULE_OF: Mapping[str, ScheduleRule] = {
    **{str(name): rule for name, rule in RULES.items()},
    "zb_h1": SPLIT_RULES["zb_h1"],
    "adaptive, split": SPLIT_RULES["adaptive"],
    "weights last": weights_last,
    "threes": threes,
}
"""Rules by the name that a test gives them: that in a configuration, but for split passes."""


def planned_iteration(
    microbatches: Sequence[Sequence[MicroBatch]],
    cluster: Cluster,
    shape: ModelShape,
    schedule: str,
    iteration: int = 0,
) -> list[RankPlan]:
    """The checked plans of all ranks, for the micro-batches of every replica."""
    return plans_by_rules(
        microbatches, cluster, shape, [RULE_OF[schedule]] * len(microbatches), iteration
    )


def plans_by_rules(
    microbatches: Sequence[Sequence[MicroBatch]],
    cluster: Cluster,
    shape: ModelShape,
    rules: Sequence[ScheduleRule],
    iteration: int = 0,
) -> list[RankPlan]:
    """The checked plans of all ranks, by a rule of schedules for every replica."""
    cost = linear_cost(
        launch_ms=(0.1,) * cluster.n_stages,
        token_ms=tuple(0.01 * (1 + stage) for stage in range(cluster.n_stages)),
    )
    pipelines = [
        schedule_pipeline(of_one, cost, cluster, [rule])
        for of_one, rule in zip(microbatches, rules, strict=True)
    ]
    boundaries = equal_shares(shape, cluster).boundaries(shape)
    plans = rank_plans(
        iteration, pipelines, cluster, cost, hidden_size=shape.hidden_size, boundaries=boundaries
    )
    check_plans(plans)
    return plans
