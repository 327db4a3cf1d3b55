"""Plans whose micro-batches may be packed: what they hold, and what they are worth."""

from itertools import accumulate

import numpy as np
import pytest
from tests.examples.equal_shares import rows_only
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.search.config import SearchConfig

BOTH: tuple[LayoutName, ...] = ("padded", "packed")
COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True)
LENGTHS = samples_of([100, 3, 9, 97, 11, 16, 40, 41, 55, 7, 7, 30])


def planner_of(
    layouts: tuple[LayoutName, ...],
    cluster: Cluster,
    cost: CostModel = COST,
    *,
    effort: int = 6_250,
    split: bool = False,
    multiple: int = 8,
) -> Planner:
    rules = schedule_rules(ScheduleConfig(split_backward=split))
    batch = DynamicConfig(layouts=layouts, token_multiple=multiple)
    search = SearchConfig(effort=effort)
    chooser = dynamic_chooser(batch, search, rules, cost=cost, cluster=cluster)
    return Planner(chooser, cost, cluster, 8, rows_only(cluster), split_backward=split)


def cluster_of(n_replicas: int = 1, n_bytes: int = 10**6) -> Cluster:
    return Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=n_bytes)


@pytest.mark.parametrize("layouts", [("padded",), ("packed",), BOTH])
@pytest.mark.parametrize("effort", [0, 6_250])
@pytest.mark.parametrize("multiple", [8, 48])
def test_rows_are_as_long_as_a_multiple_and_predicted_as_long_as_they_are(
    layouts: tuple[LayoutName, ...], effort: int, multiple: int
) -> None:
    planner = planner_of(layouts, cluster_of(), effort=effort, multiple=multiple)
    (pipeline,) = planner.choose(LENGTHS).pipelines
    costs = microbatch_costs(pipeline.microbatches, COST)
    np.testing.assert_allclose(pipeline.costs.table, costs.table, rtol=1e-12)
    tokens_of = {sample.sample_id: sample.tokens for sample in LENGTHS}
    for m in pipeline.microbatches:
        tokens = [tokens_of[i] for i in m.sample_ids]
        needed = sum(tokens) if isinstance(m, PackedRow) else max(tokens)
        assert m.row_tokens == -(-needed // multiple) * multiple


@pytest.mark.parametrize("layouts", [("padded",), BOTH])
def test_padded_rows_are_not_lengthened_to_large_multiples(layouts: tuple[LayoutName, ...]) -> None:
    assert DynamicConfig(layouts=layouts, token_multiple=128).token_multiple == 128
    with pytest.raises(ValueError, match=r"token_multiple \(136\) is more than 128.*or lower it"):
        DynamicConfig(layouts=layouts, token_multiple=136)


@pytest.mark.parametrize("layouts", [("packed",), BOTH])
@pytest.mark.parametrize("effort", [0, 6_250])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("n_replicas", [1, 2])
def test_packed_plans_hold_every_sample_and_take_as_long_as_predicted(
    layouts: tuple[LayoutName, ...], effort: int, split: bool, n_replicas: int
) -> None:
    cluster = cluster_of(n_replicas, 700)
    planner = planner_of(layouts, cluster, effort=effort, split=split)
    choice = planner.choose(LENGTHS)
    plans = planner.write(0, choice)
    check_plans(plans)
    for pipeline in choice.pipelines:
        costs = microbatch_costs(pipeline.microbatches, COST)
        timeline = simulate(pipeline.schedule, costs, cluster.link, COST.static_bytes)
        assert timeline.makespan_ms == pytest.approx(pipeline.timeline.makespan_ms, rel=1e-12)
        assert timeline.peak_bytes.max() <= 700
    formed = [m for plan in plans if plan.stage == 0 for m in plan.microbatches]
    assert sorted(i for m in formed for i in m.sample_ids) == list(range(len(LENGTHS)))
    assert any(isinstance(m, PackedRow) for m in formed)
    for m in formed:
        if isinstance(m, PackedRow):
            lengths = [LENGTHS[i].tokens for i in m.sample_ids]
            assert m.offsets == (0, *accumulate(lengths))
            assert sum(lengths) <= m.row_tokens < sum(lengths) + 8
            assert m.row_tokens % 8 == 0


PAIR_COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True, has_targets=True)
PAIRS = [
    Sample(i, a, b)
    for i, (a, b) in enumerate([(90, 3), (0, 9), (80, 41), (3, 90), (11, 11), (0, 60), (40, 7)] * 2)
]


@pytest.mark.parametrize("layouts", [("packed",), BOTH])
@pytest.mark.parametrize("n_replicas", [1, 2])
def test_packed_plans_of_pairs_hold_both_sides_of_every_sample(
    layouts: tuple[LayoutName, ...], n_replicas: int
) -> None:
    cluster = cluster_of(n_replicas, 700)
    planner = planner_of(layouts, cluster, PAIR_COST)
    choice = planner.choose(PAIRS)
    plans = planner.write(0, choice)
    check_plans(plans)
    for pipeline in choice.pipelines:
        costs = microbatch_costs(pipeline.microbatches, PAIR_COST)
        timeline = simulate(pipeline.schedule, costs, cluster.link, PAIR_COST.static_bytes)
        assert timeline.makespan_ms == pytest.approx(pipeline.timeline.makespan_ms, rel=1e-12)
        assert timeline.peak_bytes.max() <= 700
    formed = [m for plan in plans if plan.stage == 0 for m in plan.microbatches]
    assert sorted(i for m in formed for i in m.sample_ids) == list(range(len(PAIRS)))
    packed = [m for m in formed if isinstance(m, PackedRow)]
    assert packed
    for m in packed:
        inputs = [max(PAIRS[i].input_tokens, 1) for i in m.sample_ids]
        targets = [PAIRS[i].target_tokens for i in m.sample_ids]
        assert m.offsets == (0, *accumulate(inputs))
        assert m.target_offsets == (0, *accumulate(targets))
        assert m.row_tokens == -(-sum(inputs) // 8) * 8
        assert m.target_tokens == -(-sum(targets) // 8) * 8
    bound_ms = planner.lower_bound(choice, PAIRS).iteration_ms
    assert 0 < bound_ms <= choice.best.iteration_ms * (1 + 1e-12)
