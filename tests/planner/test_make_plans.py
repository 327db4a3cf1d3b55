"""From the samples of an iteration or an evaluation to the plans of all ranks."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares, rows_only
from tests.examples.linear_cost import EveryChooser, budget, linear_cost, naive, samples_of
from tests.examples.published import COSTS, PROFILES, SHAPES, Family, a100_table

from dynapipe_hpc.data.microbatch import PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.rank_plan import MemoryPlan, grid, peak_bytes
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import BaselineConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import RuleName, ScheduleConfig
from dynapipe_hpc.planner.schedule.rules import RULES, schedule_rules
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import simulate

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


NO_DELAY = Link(latency_ms=0.0, bytes_per_ms=1e12)


def evaluation_planner(cluster: Cluster, cost: CostModel) -> Planner:
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
    plans = evaluation_planner(cluster, cost).make_plans(3, samples_of(lengths))
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
    plans = evaluation_planner(cluster, cost).make_plans(0, samples_of([8, 16, 24, 64, 64, 40]))
    forward_ms = microbatch_costs(plans[0].microbatches, cost).forward_ms
    ends = np.zeros(3)
    for of_stages in forward_ms:
        for stage, takes in enumerate(of_stages):
            ends[stage] = max(ends[stage], ends[stage - 1] if stage else 0.0) + takes
    assert plans[0].prediction.iteration_ms == pytest.approx(ends[-1], rel=1e-6)


def with_memory(n_bytes: int) -> Planner:
    cluster = Cluster(device_memory_bytes=n_bytes)
    return evaluation_planner(
        cluster, linear_cost(launch_ms=(1.0,), token_ms=(0.01,), recomputes=True)
    )


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


def test_gradients_that_nobody_sends_do_not_decide_on_an_evaluation() -> None:
    cost, random = linear_cost((0.5,) * 4, (0.01,) * 4), np.random.default_rng(3)
    lengths = samples_of(random.integers(8, 400, 18).tolist())
    links = (Link(latency_ms=1.0, bytes_per_ms=50.0, full_duplex=each) for each in (True, False))
    clusters = (Cluster(n_stages=4, device_memory_bytes=10**6, link=link) for link in links)
    one, other = (evaluation_planner(each, cost).make_plans(0, lengths) for each in clusters)
    assert one == other


def test_preference_pairs_are_evaluated_in_packed_rows() -> None:
    pairs = [Sample(i, 20, 10 + i, rejected_tokens=30) for i in range(6)]
    cluster = Cluster(device_memory_bytes=10**6)
    [plan] = evaluation_planner(cluster, linear_cost((1.0,), (0.01,))).make_plans(0, pairs)
    assert all(isinstance(m, PackedRow) for m in plan.microbatches)


BOTH: tuple[LayoutName, ...] = ("padded", "packed")
COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True)
LENGTHS = samples_of([100, 3, 9, 97, 11, 16, 40, 41, 55, 7, 7, 30])


def planner_of_layouts(
    layouts: tuple[LayoutName, ...],
    cluster: Cluster,
    cost: CostModel = COST,
    *,
    effort: int = 6_250,
    split: bool = False,
) -> Planner:
    rules = schedule_rules(ScheduleConfig(split_backward=split))
    batch = DynamicConfig(layouts=layouts)
    search = SearchConfig(effort=effort)
    chooser = dynamic_chooser(batch, search, rules, cost=cost, cluster=cluster)
    return Planner(chooser, cost, cluster, 8, rows_only(cluster), split_backward=split)


def cluster_of(n_replicas: int = 1, n_bytes: int = 10**6) -> Cluster:
    return Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=n_bytes)


@pytest.mark.parametrize("layouts", [("padded",), BOTH])
def test_padded_rows_are_not_lengthened_to_large_multiples(layouts: tuple[LayoutName, ...]) -> None:
    assert DynamicConfig(layouts=layouts, token_multiple=128).token_multiple == 128
    with pytest.raises(ValueError, match=r"token_multiple \(136\) is more than 128.*or lower it"):
        DynamicConfig(layouts=layouts, token_multiple=136)


PAIR_COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True, has_targets=True)
PAIRS = [
    Sample(i, a, b)
    for i, (a, b) in enumerate([(90, 3), (0, 9), (80, 41), (3, 90), (11, 11), (0, 60), (40, 7)] * 2)
]


@pytest.mark.parametrize("layouts", [("packed",), BOTH])
@pytest.mark.parametrize("effort", [0, 6_250])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize(
    ("samples", "cost"), [(LENGTHS, COST), (PAIRS, PAIR_COST)], ids=["one side", "pairs"]
)
def test_packed_plans_hold_every_sample_and_take_as_long_as_predicted(
    layouts: tuple[LayoutName, ...],
    effort: int,
    split: bool,
    n_replicas: int,
    samples: list[Sample],
    cost: CostModel,
) -> None:
    cluster = cluster_of(n_replicas, 700)
    planner = planner_of_layouts(layouts, cluster, cost, effort=effort, split=split)
    choice = planner.choose(samples)
    plans = planner.write(0, choice)
    check_plans(plans)
    for pipeline in choice.pipelines:
        costs = microbatch_costs(pipeline.microbatches, cost)
        timeline = simulate(pipeline.schedule, costs, cluster.link, cost.static_bytes)
        assert timeline.makespan_ms == pytest.approx(pipeline.timeline.makespan_ms, rel=1e-12)
        assert timeline.peak_bytes.max() <= 700
    formed = [m for plan in plans if plan.stage == 0 for m in plan.microbatches]
    assert sorted(i for m in formed for i in m.sample_ids) == list(range(len(samples)))
    packed = [m for m in formed if isinstance(m, PackedRow)]
    assert packed
    for m in packed:
        own = [samples[i] for i in m.sample_ids]
        is_pairs = cost.is_encoder_decoder
        inputs = [max(s.input_tokens, 1) if is_pairs else s.tokens for s in own]
        assert m.offsets == (0, *accumulate(inputs))
        assert m.row_tokens == -(-sum(inputs) // 8) * 8
        targets = [s.target_tokens for s in own] if is_pairs else []
        assert m.target_offsets == ((0, *accumulate(targets)) if is_pairs else ())
        assert m.target_tokens == -(-sum(targets) // 8) * 8
    bound_ms = planner.lower_bound(choice, samples).iteration_ms
    assert 0 < bound_ms <= choice.best.iteration_ms * (1 + 1e-12)


MEASURED_LENGTHS = st.lists(
    st.tuples(st.integers(1, 600), st.integers(1, 200)), min_size=1, max_size=6
)


def cost_of(family: Family, is_smoothed: bool, cluster: Cluster) -> CostModel:
    shape = SHAPES[family].model_copy(update={"n_layers": 8})
    placement = equal_shares(shape, cluster)
    return profiled_cost(
        a100_table(family), shape, placement, cluster, config=COSTS, is_smoothed=is_smoothed
    )


@pytest.mark.parametrize("is_smoothed", [True, False])
@pytest.mark.parametrize("family", list(PROFILES))
@pytest.mark.parametrize("split_backward", [False, True])
@given(
    lengths=MEASURED_LENGTHS,
    latency_ms=st.sampled_from([0.0, 3.0]),
    n_stages=st.sampled_from([2, 4]),
)
@settings(max_examples=15, deadline=None)
def test_no_plan_beats_its_bound(
    family: Family,
    is_smoothed: bool,
    split_backward: bool,
    lengths: list[tuple[int, int]],
    latency_ms: float,
    n_stages: int,
) -> None:
    cluster = Cluster(
        n_stages=n_stages, device_memory_bytes=10**12, link=Link(latency_ms=latency_ms)
    )
    rules = schedule_rules(ScheduleConfig(split_backward=split_backward))
    cost = cost_of(family, is_smoothed, cluster)
    search = BestOfSearch(rules, SearchConfig(effort=3000), cost, cluster)
    planner = Planner(search, cost, cluster, 8, rows_only(cluster), split_backward=split_backward)
    samples = [Sample(i, *sizes) for i, sizes in enumerate(lengths)]
    choice = planner.choose(samples)
    assert planner.lower_bound(choice, samples).iteration_ms <= choice.best.makespan_ms * (1 + 1e-9)
