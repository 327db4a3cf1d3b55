"""From the samples of an iteration to the plans of all ranks."""

from collections.abc import Sequence

import pytest
from tests.examples.baselines import EveryChooser, budget, naive
from tests.examples.equal_shares import rows_only
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.rank_plan import MemoryPlan
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import BaselineConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

ROOMY = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=1_000_000)


def planner_of(
    cluster: Cluster = ROOMY,
    baselines: Sequence[BaselineConfig] = (budget(256),),
    schedules: Sequence[RuleName] = ("1f1b", "cyclic"),
) -> Planner:
    return planner_with(linear_cost(), cluster, baselines, [RULES[name] for name in schedules])


def planner_with(
    cost: CostModel,
    cluster: Cluster,
    baselines: Sequence[BaselineConfig],
    schedules: Sequence[ScheduleRule],
) -> Planner:
    choosers = [Baseline(config, schedules, cost, cluster) for config in baselines]
    return Planner(EveryChooser(choosers), cost, cluster, 8, rows_only(cluster))


def test_plans_hold_the_memory_that_costs_say() -> None:
    cost, rules = linear_cost(token_bytes=3.5, model_bytes=70_000.0), [RULES["cyclic"]]
    planner = planner_with(cost, ROOMY, [budget(256)], rules)
    for plan in planner.make_plans(0, samples_of([5, 100, 7, 64, 64, 9, 200])):
        tokens = [m.padded_tokens for m in plan.microbatches]
        assert plan.memory == MemoryPlan(
            limit=1_000_000,
            static=70_000,
            stored=tuple(int(3.5 * n) for n in tokens),
            forward_transient=tuple(int(3.5 * n / 4) for n in tokens),
            backward_transient=tuple(int(3.5 * n / 2) for n in tokens),
        )


@pytest.mark.parametrize(("spread", "n_parts"), [(False, 1), (True, 3)])
def test_shards_that_divide_tokens_receive_their_own(spread: bool, n_parts: int) -> None:
    changes = {"n_shards": 3, "sequence_parallel": spread}
    planner = planner_of(ROOMY.model_copy(update=changes), [naive(1)])
    for plan in planner.make_plans(0, samples_of([5, 100, 7, 64])):
        assert plan.n_stream_shards == n_parts
        (m,) = {m.row_tokens for m in plan.microbatches}
        shape = plan.received_shape(0, Payload.ACTIVATION)
        assert shape == ((-(-m // 3), 8) if spread else (1, m, 8))
