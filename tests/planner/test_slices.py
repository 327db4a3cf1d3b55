import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost
from tests.examples.stage_costs import equal_stages, no_limit

from dynapipe_hpc.architecture.decoder import LlamaShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, activation_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.slice_rule import MIN_SLICE_TOKENS, Cut, SliceRule, SliceSetting
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch, search_spaces
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, SliceMemory, forward_costs
from dynapipe_hpc.planner.make_plans import rank_plans
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.planner.schedule.rules import (
    RULES,
    SPLIT_RULES,
    adaptive,
    adaptive_split,
    one_f_one_b,
)
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError

SHAPE = LlamaShape(
    n_layers=8, hidden_size=512, n_heads=8, n_kv_heads=2, ffn_size=1536, vocab_size=1000,
    max_tokens=1 << 17,
)  # fmt: skip
MODES = AnalyticConfig(recompute=("none", "full"), launch_ms=0.1)
ADAPTIVE = [adaptive_split, adaptive]
AMPLE = 10**12
PLAIN = ExecutionMode(Layout.PACKED, Recompute.NONE)


def cost_of(cluster: Cluster) -> CostModel:
    placement = Placement.equal_shares(SHAPE.n_layers, cluster.n_stages)
    return analytic_cost(SHAPE, placement, cluster, MODES)


def cluster_of(n_stages: int, n_replicas: int = 1, memory_bytes: int = AMPLE) -> Cluster:
    return Cluster(n_stages=n_stages, n_replicas=n_replicas, device_memory_bytes=memory_bytes)


def chosen(
    lengths: Sequence[int], cluster: Cluster, slices: SliceSetting, effort: int = 20_000
) -> Choice:
    """The plan of a batch, which has passed the check."""
    config = SearchConfig(effort=effort)
    cost = cost_of(cluster)
    search = BestOfSearch(ADAPTIVE, config, cost, cluster, (Layout.PACKED,), slices=slices)
    choice = search.choose(samples_of(lengths))
    boundaries = Placement.equal_shares(SHAPE.n_layers, cluster.n_stages).boundaries(SHAPE)
    check_plans(
        rank_plans(
            0, choice.pipelines, cluster, cost, hidden_size=SHAPE.hidden_size, boundaries=boundaries
        )
    )
    return choice


def samples_of(lengths: Sequence[int]) -> list[Sample]:
    return samples_of_lengths([(n // 2, n - n // 2) for n in lengths])


def slices_of(choice: Choice) -> dict[int, list[Slice]]:
    """Slices by sample, in the order of micro-batches."""
    found = defaultdict[int, list[Slice]](list)
    for pipeline in choice.pipelines:
        for microbatch in pipeline.microbatches:
            if microbatch.slice:
                found[microbatch.sample_ids[0]].append(microbatch.slice)
    return found


def microbatches_of(choice: Choice) -> list[MicroBatch]:
    return [m for pipeline in choice.pipelines for m in pipeline.microbatches]


LONG_TAIL = [24_000, 9_000, *[1_500, 800, 300, 150] * 20]


@pytest.mark.parametrize(("n_stages", "n_replicas"), [(4, 1), (8, 1), (4, 2)])
def test_a_long_sample_runs_as_slices_where_the_plan_ends_sooner(
    n_stages: int, n_replicas: int
) -> None:
    cluster = cluster_of(n_stages, n_replicas)
    sliced, whole = (chosen(LONG_TAIL, cluster, each) for each in ("auto", "off"))
    assert sliced.best.iteration_ms < 0.9 * whole.best.iteration_ms
    assert not slices_of(whole)
    assert len(slices_of(sliced)[0]) >= 4
    used = [i for m in microbatches_of(sliced) for i in m.sample_ids]
    assert sorted(set(used)) == list(range(len(LONG_TAIL)))
    assert len(used) - len(set(used)) == sum(len(s) - 1 for s in slices_of(sliced).values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_no_plan_is_longer_than_without_slices(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311, it is to be repeated
    lengths = [int(draw.lognormvariate(6, 1.6)) + 1 for _ in range(draw.randint(4, 40))]
    cluster = cluster_of(draw.choice([1, 2, 4, 8]), draw.choice([1, 2]))
    sliced, whole = (chosen(lengths, cluster, each, effort=3000) for each in ("auto", "off"))
    assert sliced.best.iteration_ms <= whole.best.iteration_ms


@pytest.mark.parametrize("n_stages", [1, 2])
def test_a_number_of_tokens_cuts_every_longer_sample(n_stages: int) -> None:
    choice = chosen([2_500, 900, 512, 500, 30], cluster_of(n_stages), 512)
    assert slices_of(choice) == {
        0: [Slice(begin, min(begin + 512, 2_500), 2_500) for begin in range(0, 2_500, 512)],
        1: [Slice(0, 512, 900), Slice(512, 900, 900)],
    }


def test_slices_of_the_rule_take_equally_long_and_are_long_enough() -> None:
    cluster = cluster_of(8)
    cost, samples = cost_of(cluster), samples_of([60_000, *[400] * 100])
    ((few, many),) = SliceRule("auto").cuts(samples, cost, cluster)
    assert len(many.slices) == 2 * len(few.slices)
    for cut in (few, many):
        assert [part.end for part in cut.slices[:-1]] == [part.begin for part in cut.slices[1:]]
        assert all(part.begin % 8 == 0 for part in cut.slices)
        lengths = [part.end - part.begin for part in cut.slices]
        # Later tokens see more; slices begin at multiples of 8.
        assert all(later <= before + 8 for before, later in pairwise(lengths))
        work_ms = microbatch_costs(cut.rows(PLAIN, 8), cost).work_ms[:, 3]
        assert work_ms.max() < 1.1 * work_ms.min()
    assert min(part.end - part.begin for part in few.slices) >= MIN_SLICE_TOKENS / 2


@pytest.mark.parametrize(
    ("n_tokens", "n_others", "n_slices"),
    [
        (16_384, 10, [8, 16]),
        (65_536, 1_764, [16, 32]),  # a 59th of the gap is a hundredth of the work
        (2_048, 1, [2]),
        (2_047, 1, []),
    ],
)
def test_a_sample_has_as_many_slices_as_make_its_gap_small(
    n_tokens: int, n_others: int, n_slices: list[int]
) -> None:
    cost = linear_cost(token_ms=(1e-3,), cached_bytes=1.0)
    samples = samples_of([n_tokens, *[400] * n_others])
    cuts = [cut for each in SliceRule("auto").cuts(samples, cost, cluster_of(8)) for cut in each]
    assert [len(cut.slices) for cut in cuts] == n_slices


def test_a_sample_that_rows_hold_in_one_part_is_not_cut() -> None:
    cost = linear_cost(token_ms=(1e-3,), cached_bytes=1.0)
    assert SliceRule("auto", 16_384).cuts(samples_of([16_000, 400]), cost, cluster_of(8)) == []


def test_samples_whose_trips_are_short_are_not_cut() -> None:
    samples = samples_of([6_000, *[500] * 200])
    clusters = cluster_of(2), cluster_of(4)
    cuts = [SliceRule("auto").cuts(samples, cost_of(each), each) for each in clusters]
    assert [len(each) for each in cuts] == [0, 1]


@pytest.mark.parametrize(("room_share", "n_cut"), [(0.9, 1), (1.1, 0)])
def test_samples_are_cut_where_memory_holds_fewer_whole_ones_than_stages(
    room_share: float, n_cut: int
) -> None:
    cost = linear_cost((1.0,) * 8, (1e-3,) * 8, token_bytes=2.0, cached_bytes=1.0)
    cluster = cluster_of(8, memory_bytes=int(room_share * 8 * 2 * 4_000))
    samples = samples_of([4_000, *[500] * 200])
    assert len(SliceRule("auto").cuts(samples, cost, cluster)) == n_cut


@pytest.mark.parametrize("n_stages", [1, 2])
def test_a_sample_that_does_not_fit_whole_runs_as_slices(n_stages: int) -> None:
    lengths, cluster = [16_000, *[200] * 30], cluster_of(n_stages)
    cost = cost_of(cluster)
    full_bytes = [
        (cost.static_bytes + costs.stored_bytes + costs.backward_transient_bytes).max()
        for costs in [microbatch_costs(microbatches_of(chosen([16_000, 8], cluster, "off")), cost)]
    ]
    scarce = cluster_of(n_stages, memory_bytes=int(0.6 * max(full_bytes)))
    with pytest.raises(DoesNotFitError, match=r'as slices .*slices = "auto"'):
        chosen([40_000, *lengths[1:]], scarce, "off")
    assert slices_of(chosen([40_000, *lengths[1:]], scarce, "auto"))


def test_a_sample_is_refused_that_fits_neither_whole_nor_has_two_slices() -> None:
    cost = forward_costs(linear_cost((1.0,), (0.01,), token_bytes=2.0, cached_bytes=0.01))
    samples, cluster = samples_of([4096, 1800, 300]), Cluster(device_memory_bytes=4000)
    with pytest.raises(DoesNotFitError):
        list(search_spaces(samples, cost, cluster, layouts=[Layout.PACKED], slices="auto"))


def test_preference_pairs_are_not_cut() -> None:
    cluster = cluster_of(8)
    texts, pairs = ([Sample(i, 2000, 4000, rejected_tokens=n) for i in range(4)] for n in (0, 4000))
    cuts = [SliceRule("auto").cuts(each, cost_of(cluster), cluster) for each in (texts, pairs)]
    assert [len(each) for each in cuts] == [4, 0]


@pytest.mark.parametrize("name", ["1f1b", "cyclic", "zb_h1"])
def test_rules_with_a_fixed_order_of_passes_refuse_slices(name: RuleName) -> None:
    later = np.array([2, 1, 0], np.uint32)
    costs = replace(equal_stages([1.0] * 3, n_stages=2), later_slices=later)
    with pytest.raises(InfeasibleScheduleError, match="slices of samples need an adaptive"):
        {**RULES, **SPLIT_RULES}[name](costs, no_limit(costs))


def test_a_fixed_order_of_passes_has_no_slices() -> None:
    cluster = cluster_of(2)
    search = BestOfSearch(
        [one_f_one_b], SearchConfig(effort=100), cost_of(cluster), cluster, (Layout.PACKED,),
        slices=512,
    )  # fmt: skip
    choice = search.choose(samples_of(LONG_TAIL))
    assert choice.best.iteration_ms > 0
    assert not slices_of(choice)


@pytest.mark.parametrize(("room_share", "shares"), [(1.0, {0.25, 0.5, 0.75}), (0.6, {0.25, 0.5})])
def test_windows_of_slices_cost_what_their_micro_batches_do(
    room_share: float, shares: set[float]
) -> None:
    samples, ample = samples_of([9_000, 700, 400]), cluster_of(4)
    memory_bytes = cost_of(ample).static_bytes.max() + room_share * kept_bytes(9_000, ample)
    cluster = cluster_of(4, memory_bytes=int(memory_bytes))
    cost = cost_of(cluster)
    table, *_ = search_spaces(samples, cost, cluster, layouts=(Layout.PACKED,), slices="auto")
    partly = set()
    for mode, (_, recompute, n_slices, n_kept) in enumerate(table.modes):
        window = np.array([[0, 1, mode]], np.uint32)
        if table.cells_of(window)[0] < 0:
            continue
        rows = table.microbatches(0, 1, mode)
        recomputed = [recompute] * (n_slices - n_kept)
        assert [row.recompute for row in rows] == [*recomputed, *[Recompute.NONE] * n_kept]
        partly |= {n_kept / n_slices} - {0.0}
        costs = microbatch_costs(rows, cost)
        assert np.array_equal(table.costs_of(window).table, costs.table)
        held_bytes = costs.stored_bytes.sum(0) + costs.backward_transient_bytes.max(0)
        assert (held_bytes <= memory_bytes - cost.static_bytes).all()
    assert partly == shares


@pytest.mark.parametrize(("n_tokens", "n_modes"), [(2_000, 3), (3_000, 4), (4_000, 5)])
def test_few_slices_are_recomputed_in_few_shares(n_tokens: int, n_modes: int) -> None:
    cluster = cluster_of(2)
    table, *_ = search_spaces(
        samples_of([n_tokens, 500]), cost_of(cluster), cluster, layouts=(Layout.PACKED,),
        slices=1_024,
    )  # fmt: skip
    cells = table.cells[table.cells >= 0]
    assert (table.sliced.first[cells] != cells).sum() == n_modes


def kept_bytes(n_tokens: int, cluster: Cluster) -> float:
    """Most that a stage needs for a sample of which nothing is recomputed."""
    alone = Shapes.padded(np.ones(1), np.full(1, float(n_tokens)), np.zeros(1))
    return float(activation_bytes(cost_of(cluster).stage_costs(alone)).max())


@pytest.mark.parametrize(("recompute", "spared"), [(Recompute.NONE, 0.5), (Recompute.FULL, 0.0)])
def test_what_slices_keep_counts_to_those_that_free_it(recompute: Recompute, spared: float) -> None:
    cost = replace(
        linear_cost(token_bytes=100.0, launch_ms=(1.0,), token_ms=(1.0,), recomputes=True),
        slice_memory=SliceMemory(*np.array([[1.0], [10.0], [0.5]])),  # kept, sums, spared
    )
    parts = [Slice(0, 32, 72), Slice(32, 56, 72), Slice(56, 72, 72)]
    rows = Cut(samples_of([72])[0], tuple(parts)).rows(ExecutionMode(Layout.PACKED, recompute), 8)
    of_tokens = cost.stage_costs(
        Shapes.padded(np.ones(3), np.array([32.0, 24.0, 16.0]), np.zeros(3)), recompute
    ).stored_bytes[:, 0]
    counted = microbatch_costs(rows, cost).stored_bytes[:, 0] - of_tokens
    first, second, last = (-spared * n for n in (32, 24, 16))
    # Sums of all but the last slice's tokens begin when that goes back, which frees less.
    freed = max(last - 56 * 10, -of_tokens[2])
    assert counted.tolist() == [first + 72 + 32 * 10, second + 24 * 10, freed]
