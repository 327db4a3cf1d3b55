"""Bounds below which no iteration can be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.examples.splits_backward import splits_backward
from tests.examples.stage_costs import drawn_costs, equal_stages, no_limit, with_columns
from tests.oracles.every_plan import every_padded_plan
from tests.oracles.every_schedule import least_makespan_ms, tiny_costs

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.from_config import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.planner.schedule.lower_bound import lower_bound, replica_bound_ms
from dynapipe_hpc.planner.schedule.may_split import may_split
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.padded_bound import padded_bound_ms
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.update import iteration_ms, reduced_ms
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1

ROUNDING = 1 + 1e-12

Rules = Mapping[RuleName, ScheduleRule]

EVERY_RULE: Rules = {**RULES, **SPLIT_RULES}

links = st.builds(
    Link,
    latency_ms=st.sampled_from([0.0, 0.5, 20.0]),
    bytes_per_ms=st.sampled_from([1.0, 10.0, 1e9]),
    full_duplex=st.booleans(),
)


@pytest.mark.parametrize("rule", EVERY_RULE.values(), ids=EVERY_RULE.keys())
@given(costs=drawn_costs(), link=links)
def test_no_schedule_of_the_micro_batches_is_shorter(
    rule: ScheduleRule, costs: StageCosts, link: Link
) -> None:
    schedule = rule(costs, no_limit(costs), link)
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    bound_ms = replica_bound_ms(costs, link, may_split=splits_backward(schedule))
    assert bound_ms <= timeline.makespan_ms * ROUNDING


@pytest.mark.parametrize("split", [False, True])
@given(costs=tiny_costs(), link=links, reduces=st.sampled_from([0.0, 3.0, -3.0]))
def test_no_order_of_all_that_there_are_is_shorter(
    split: bool, costs: StageCosts, link: Link, reduces: float
) -> None:
    reduce_ms = (reduces * np.arange(costs.n_stages)).clip(3 * reduces) - 3 * min(reduces, 0)
    costs = replace(costs, reduce_ms=reduce_ms)
    best_ms = least_makespan_ms(costs, link, split=split, reduce_ms=reduce_ms)
    assert replica_bound_ms(costs, link, may_split=split) <= best_ms * ROUNDING


@pytest.mark.parametrize("rule", [one_f_one_b, zb_h1])
@given(costs=drawn_costs(), link=links)
def test_a_micro_batch_alone_takes_as_long_as_its_bound(
    rule: ScheduleRule, costs: StageCosts, link: Link
) -> None:
    alone = with_columns(costs.take(np.array([0])), splitting_ms=0)  # which bounds leave out
    schedule = rule(alone, no_limit(alone))
    timeline = simulate(schedule, alone, link, np.zeros(alone.n_stages))
    bound_ms = replica_bound_ms(alone, link, may_split=splits_backward(schedule))
    assert bound_ms == pytest.approx(timeline.makespan_ms)


def test_equal_micro_batches_in_1f1b_reach_the_bound() -> None:
    # Three passes there, 5 x 3 ms of work on the last stage, three times 2 ms back.
    costs = equal_stages([1] * 5, n_stages=4)
    assert replica_bound_ms(costs, INSTANT, may_split=False) == 3 + 15 + 6
    schedule = RULES["1f1b"](costs, no_limit(costs))
    assert simulate(schedule, costs, INSTANT, np.zeros(4)).makespan_ms == 24


def test_what_stages_reduce_is_part_of_the_bound() -> None:
    # As above, the last micro-batch comes back to the first stage after 24 ms; if W is separate,
    # after 3 ms there, 5 x 2 ms of work, 3 x 1 ms back and W.
    costs = replace(equal_stages([1] * 5, n_stages=4), reduce_ms=np.array([25.0, 0, 0, 0]))
    assert replica_bound_ms(costs, INSTANT, may_split=False) == 24 + 25
    assert replica_bound_ms(costs, INSTANT, may_split=True) == 3 + 10 + 3 + 1 + 25
    # The last stage ends after 18 ms, and has reduced after the first stage has ended.
    last = replace(costs, reduce_ms=np.array([0.0, 0, 0, 7]))
    assert replica_bound_ms(last, INSTANT, may_split=False) == 18 + 7


def test_equal_micro_batches_in_zero_bubble_h1_reach_the_bound_of_split_schedules() -> None:
    # Three passes there, 9 x 3 ms of work on the last stage, W last.
    costs = equal_stages([1] * 9, n_stages=4)
    assert replica_bound_ms(costs, INSTANT, may_split=True) == 3 + 27
    schedule = zb_h1(costs, no_limit(costs))
    assert simulate(schedule, costs, INSTANT, np.zeros(4)).makespan_ms == 30


def makespan_ms(
    plan: Sequence[Sequence[MicroBatch]], cost: CostModel, cluster: Cluster, rules: Rules
) -> float:
    """By the best of some rules; infinite if the plan does not keep within memory."""
    try:
        pipelines = [schedule_pipeline(m, cost, cluster, list(rules.values())) for m in plan]
    except InfeasibleScheduleError:
        return np.inf
    least_ms = float(cost.reduce_ms.min())
    return max(reduced_ms(pipeline.timeline, cost) for pipeline in pipelines) - least_ms


def in_mode(microbatch: MicroBatch, recompute: Recompute) -> MicroBatch:
    return replace(microbatch, recompute=recompute)


@pytest.mark.parametrize("memory_bytes", [1_000_000, 1000])
@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("rules", [RULES, EVERY_RULE], ids=["whole", "split"])
@pytest.mark.parametrize("draw", range(2))
def test_no_plan_of_few_samples_is_shorter(
    draw: int, n_replicas: int, memory_bytes: int, rules: Rules
) -> None:
    random = np.random.default_rng(draw)
    samples = samples_of(random.integers(1, 300, 4).tolist())
    weights_ms = tuple(random.uniform(0, 20, 3)) if n_replicas > 1 else ()
    cost = LinearCost(
        tuple(random.uniform(0, 3, 3)),
        tuple(random.uniform(0, 0.05, 3)),
        weights_ms=weights_ms,
    )
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=memory_bytes)
    plans = every_padded_plan(samples, n_replicas)
    best_ms = min(makespan_ms(plan, cost, cluster, rules) for plan in plans)
    bound_ms = padded_bound_ms(samples, cost, cluster, may_split=may_split(rules.values()))
    assert 0.4 * best_ms <= bound_ms <= best_ms * ROUNDING


@pytest.mark.parametrize("memory_bytes", [1_000_000, 600])  # 912 for 304 tokens, 456 recomputed
@pytest.mark.parametrize("rules", [RULES, EVERY_RULE], ids=["whole", "split"])
@pytest.mark.parametrize("draw", range(4))
def test_no_plan_is_shorter_whatever_it_recomputes(
    draw: int, memory_bytes: int, rules: Rules
) -> None:
    samples = samples_of([300, *np.random.default_rng(draw).integers(1, 300, 2).tolist()])
    cost = LinearCost((1.0, 2.0), (0.02, 0.03), recomputes=True)
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    best_ms = min(
        makespan_ms([list(map(in_mode, plan, modes))], cost, cluster, rules)
        for (plan,) in every_padded_plan(samples, 1)
        for modes in product(cost.recompute_modes, repeat=len(plan))
    )
    bound_ms = padded_bound_ms(samples, cost, cluster, may_split=may_split(rules.values()))
    assert 0.4 * best_ms <= bound_ms <= best_ms * ROUNDING


@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("draw", range(2))
def test_no_plan_is_shorter_where_inputs_and_targets_are_padded(draw: int, n_replicas: int) -> None:
    random = np.random.default_rng(draw)
    lengths = random.integers(1, 300, (4, 2)).tolist()
    samples = [Sample(i, inputs, targets) for i, (inputs, targets) in enumerate(lengths)]
    cost = LinearCost((1.0, 2.0), (0.02, 0.03), has_targets=True)
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=10_000)
    best_ms = min(
        makespan_ms(plan, cost, cluster, EVERY_RULE)
        for plan in every_padded_plan(samples, n_replicas, is_encoder_decoder=True)
    )
    bound_ms = padded_bound_ms(samples, cost, cluster, may_split=True)
    assert 0.3 * best_ms <= bound_ms <= best_ms * ROUNDING


@pytest.mark.parametrize("weights_ms", [(), (5.0, 9.0), (9.0, 5.0)])
def test_one_sample_takes_as_long_as_the_bound(weights_ms: tuple[float, ...]) -> None:
    samples, cost = samples_of([100]), LinearCost(weights_ms=weights_ms)
    cluster = Cluster(n_stages=2, device_memory_bytes=10_000)
    pipeline = schedule_pipeline(
        next(every_padded_plan(samples, 1))[0], cost, cluster, [RULES["1f1b"]]
    )
    bound = lower_bound([pipeline], samples, cost, cluster, may_split=False)
    assert bound.iteration_ms == pytest.approx(iteration_ms([pipeline.timeline], cost))
    assert bound.longest_trip_ms == pytest.approx(pipeline.timeline.makespan_ms)
