"""Plans of random schedules, executed over a transport that tells mistakes at once."""

import numpy as np
from hypothesis import given, settings
from tests.examples.example_plans import drawn_plans
from tests.examples.linear_stage import LinearStage
from tests.examples.local_ranks import LocalNetwork, LocalWorld

from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.plan.rank_plan import RankPlan


@settings(max_examples=50)
@given(drawn_plans(may_split=False))
def test_every_tensor_arrives_where_it_is_needed(plans: list[RankPlan]) -> None:
    last = len(plans) - 1
    stages = [LinearStage(s + 2.0, first=s == 0, last=s == last, width=4) for s in range(last + 1)]
    world = LocalWorld(len(plans))
    network = LocalNetwork(world, np.zeros)
    traces = world.run(
        lambda rank: launch_plan(plans[rank], stages[rank], network.transport(rank)).finish()
    )
    product = np.prod([stage.factor for stage in stages])
    sample_ids = sum(sum(m.sample_ids) for m in plans[0].microbatches)
    assert sum(trace.loss for trace in traces) == product * sample_ids
    for stage in stages:
        assert stage.factor_gradient == product / stage.factor * sample_ids
