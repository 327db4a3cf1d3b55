from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.baselines import naive
from tests.examples.equal_shares import rows_only
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.rank_plan import peak_bytes
from dynapipe_hpc.plan.text import grid
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.make_plans import Planner

NO_DELAY = Link(latency_ms=0.0, bytes_per_ms=1e12)


def planner_of(cluster: Cluster, cost: CostModel) -> Planner:
    trained = Baseline(naive(1), [RULES["1f1b"]], cost, cluster)
    planner = Planner(trained, cost, cluster, 8, rows_only(cluster))
    return planner.of_evaluation(DynamicConfig())


@settings(max_examples=40)
@given(st.integers(1, 2), st.integers(1, 4), st.lists(st.integers(1, 64), min_size=2, max_size=24))
def test_every_sample_passes_every_stage_once_and_nothing_comes_back(
    n_replicas: int, n_stages: int, lengths: list[int]
) -> None:
    cluster = Cluster(
        n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=10**6, link=NO_DELAY
    )
    cost = linear_cost(launch_ms=(0.5,) * n_stages, token_ms=(0.01,) * n_stages)
    plans = planner_of(cluster, cost).make_plans(3, samples_of(lengths))
    check_plans(plans)
    visits = Counter(
        (plan.stage, i) for plan in plans for m in plan.microbatches for i in m.sample_ids
    )
    assert visits == Counter((s, i) for s in range(n_stages) for i in range(len(lengths)))
    for plan, line in zip(plans, grid(plans).splitlines(), strict=True):
        assert plan.is_forward_only
        assert line.count(" F") == len(plan.microbatches)
        assert not {"B", "I", "W", "g", "reduce", "step"} & {w[:6] for w in line.split()[3:]}
        assert peak_bytes(plan) <= plan.memory.limit


def test_the_predicted_time_is_that_of_a_flow_shop() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**6, link=NO_DELAY)
    update_ms = (7.0, 7.0, 7.0)  # which an evaluation does without
    cost = linear_cost((1.0, 2.0, 0.5), token_ms=(0.02, 0.01, 0.03), weights_ms=update_ms)
    plans = planner_of(cluster, cost).make_plans(0, samples_of([8, 16, 24, 64, 64, 40]))
    forward_ms = microbatch_costs(plans[0].microbatches, cost).forward_ms
    ends = np.zeros(3)
    for of_stages in forward_ms:
        for stage, takes in enumerate(of_stages):
            ends[stage] = max(ends[stage], ends[stage - 1] if stage else 0.0) + takes
    assert plans[0].prediction.iteration_ms == pytest.approx(ends[-1], rel=1e-6)


def with_memory(n_bytes: int) -> Planner:
    cluster = Cluster(device_memory_bytes=n_bytes)
    return planner_of(cluster, linear_cost(launch_ms=(1.0,), token_ms=(0.01,), recomputes=True))


def test_memory_is_that_of_one_forward_pass_which_keeps_nothing() -> None:
    n_bytes = (
        64  # of 64 tokens, 2 a token: a quarter where all is recomputed, and as much transient
    )
    [plan] = with_memory(n_bytes).make_plans(0, samples_of([64] * 9))
    assert len(plan.microbatches) == 9
    assert peak_bytes(plan) == n_bytes
    assert {m.recompute for m in plan.microbatches} == {Recompute.NONE}
    with pytest.raises(DoesNotFitError, match="needs 64 bytes on stage 0"):
        with_memory(n_bytes - 1).make_plans(0, samples_of([64]))
