"""Bounds below which no iteration can be."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.every_plan import every_padded_plan
from tests.oracles.length_samples import samples_of
from tests.oracles.linear_cost import LinearCost
from tests.oracles.stage_costs import drawn_costs, equal_stages, no_limit

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.schedule.config import RULES
from dynapipe_hpc.planner.schedule.lower_bound import padded_bound_ms, replica_bound_ms
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate

ROUNDING = 1 + 1e-12

links = st.builds(
    Link,
    latency_ms=st.sampled_from([0.0, 0.5, 20.0]),
    bytes_per_ms=st.sampled_from([0.5, 10.0, 1e9]),
    full_duplex=st.booleans(),
)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@given(costs=drawn_costs(), link=links)
def test_no_schedule_of_the_micro_batches_is_shorter(
    rule: ScheduleRule, costs: StageCosts, link: Link
) -> None:
    schedule = rule(costs, no_limit(costs), link)
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    assert replica_bound_ms(costs, link) <= timeline.makespan_ms * ROUNDING


@given(costs=drawn_costs(), link=links)
def test_a_micro_batch_alone_takes_as_long_as_its_bound(costs: StageCosts, link: Link) -> None:
    alone = costs.take(np.array([0]))
    schedule = RULES["1f1b"](alone, no_limit(alone))
    timeline = simulate(schedule, alone, link, np.zeros(alone.n_stages))
    assert replica_bound_ms(alone, link) == pytest.approx(timeline.makespan_ms)


def test_equal_micro_batches_in_1f1b_reach_the_bound() -> None:
    # Three passes there, 5 x 3 ms of work on the last stage, three times 2 ms back.
    costs = equal_stages([1] * 5, n_stages=4)
    assert replica_bound_ms(costs, INSTANT) == 3 + 15 + 6
    schedule = RULES["1f1b"](costs, no_limit(costs))
    assert simulate(schedule, costs, INSTANT, np.zeros(4)).makespan_ms == 24


def makespan_ms(plan: Sequence[Sequence[MicroBatch]], cost: CostModel, cluster: Cluster) -> float:
    """By the best of all rules; infinite if the plan does not keep within memory."""
    try:
        pipelines = [schedule_pipeline(m, cost, cluster, list(RULES.values())) for m in plan]
    except InfeasibleScheduleError:
        return np.inf
    return max(pipeline.timeline.makespan_ms for pipeline in pipelines)


def in_mode(microbatch: MicroBatch, recompute: Recompute) -> MicroBatch:
    return replace(microbatch, recompute=recompute)


@pytest.mark.parametrize("memory_bytes", [1_000_000, 1000])
@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("draw", range(4))
def test_no_plan_of_few_samples_is_shorter(draw: int, n_replicas: int, memory_bytes: int) -> None:
    random = np.random.default_rng(draw)
    samples = samples_of(random.integers(1, 300, 4).tolist())
    cost = LinearCost(tuple(random.uniform(0, 3, 3)), tuple(random.uniform(0, 0.05, 3)))
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=memory_bytes)
    plans = every_padded_plan(samples, n_replicas)
    best_ms = min(makespan_ms(plan, cost, cluster) for plan in plans)
    assert 0.4 * best_ms <= padded_bound_ms(samples, cost, cluster) <= best_ms * ROUNDING


@pytest.mark.parametrize("memory_bytes", [1_000_000, 600])  # 912 for 304 tokens, 456 recomputed
@pytest.mark.parametrize("draw", range(4))
def test_no_plan_is_shorter_whatever_it_recomputes(draw: int, memory_bytes: int) -> None:
    samples = samples_of([300, *np.random.default_rng(draw).integers(1, 300, 2).tolist()])
    cost = LinearCost((1.0, 2.0), (0.02, 0.03), recomputes=True)
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    best_ms = min(
        makespan_ms([list(map(in_mode, plan, modes))], cost, cluster)
        for (plan,) in every_padded_plan(samples, 1)
        for modes in product(cost.recompute_modes, repeat=len(plan))
    )
    assert 0.4 * best_ms <= padded_bound_ms(samples, cost, cluster) <= best_ms * ROUNDING


def test_one_sample_takes_as_long_as_the_bound() -> None:
    samples, cost = samples_of([100]), LinearCost()
    cluster = Cluster(n_stages=2, device_memory_bytes=10_000)
    pipeline = schedule_pipeline(
        next(every_padded_plan(samples, 1))[0], cost, cluster, [RULES["1f1b"]]
    )
    bound_ms = padded_bound_ms(samples, cost, cluster)
    assert bound_ms == pytest.approx(pipeline.timeline.makespan_ms)
