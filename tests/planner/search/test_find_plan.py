"""The search against trying everything, its spaces, and stages of one kind."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import (
    changed,
    linear_cost,
    packed_apart,
    samples_of,
    schedule_pipeline,
)
from tests.examples.measured_layers import T5_SHAPE
from tests.planner.test_kernel_inputs import CELLS, LINK, ROWS, SPANS

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import halved, order_samples, orders
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch, search_spaces
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Shapes,
    SliceMemory,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.rules import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.schedule_rule import kernel_link
from dynapipe_hpc.planner.schedule.simulate import extra_reduce_ms, reduced_ms

COST = linear_cost((1.0, 2.0), (0.02, 0.03))
Replicas = Sequence[Sequence[MicroBatch]]


def cluster_of(n_replicas: int, memory_bytes: int = 1_000_000) -> Cluster:
    return Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=memory_bytes)


def find(
    samples: Sequence[Sample],
    cluster: Cluster,
    effort: int,
    *,
    cost: CostModel = COST,
    split_backward: bool = False,
) -> list[tuple[Replicas, float]]:
    """Plans that are found in the plainest order, the best last, and their makespans."""
    table, *_ = search_spaces(samples, cost, cluster)
    (found,) = _kernels.find_plans(
        [table.kernel_costs],
        activation_room_bytes(cost, cluster),
        kernel_link(cluster.link),
        split_backward,
        extra_reduce_ms(cost),
        np.ones(cluster.n_replicas),
        effort,
        0,
    )
    return [
        ([table.microbatches_of(replica) for replica in plan.replicas], plan.makespan_ms)
        for plan in found
    ]


def makespan_ms(
    replicas: Replicas, cluster: Cluster, cost: CostModel = COST, *, split_backward: bool = False
) -> float:
    rule = adaptive_split if split_backward else adaptive
    pipelines = [schedule_pipeline(m, cost, cluster, [rule]) for m in replicas]
    assert all(
        pipeline.timeline.peak_bytes.max() <= cluster.device_memory_bytes for pipeline in pipelines
    )
    least_ms = float(cost.reduce_ms.min())
    return max(reduced_ms(pipeline.timeline, cost) for pipeline in pipelines) - least_ms


def every_plan(samples: Sequence[Sample], n_replicas: int) -> Iterator[Replicas]:
    """All cuts of the ordered samples, over all replicas, in all orders."""
    ordered = order_samples(samples)
    for cuts in product((False, True), repeat=len(samples) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(samples)]
        windows = [ordered[a:b] for a, b in pairwise(bounds)]
        for order in permutations(padded_microbatch(window, Recompute.NONE) for window in windows):
            for owners in product(range(n_replicas), repeat=len(order)):
                replicas: list[list[MicroBatch]] = [[] for _ in range(n_replicas)]
                for owner, microbatch in zip(owners, order, strict=True):
                    replicas[owner].append(microbatch)
                if all(replicas):
                    yield replicas


@pytest.mark.parametrize(
    ("weights_ms", "split_backward"), [((), False), ((5.0, 9.0), False), ((9.0, 5.0), True)]
)
@pytest.mark.parametrize(("n_replicas", "draw"), [(1, 0), (1, 1), (1, 2), (2, 0)])
def test_it_finds_the_best_of_all_plans_of_few_samples(
    n_replicas: int, draw: int, weights_ms: tuple[float, ...], split_backward: bool
) -> None:
    lengths = np.random.default_rng(draw).integers(1, 300, 5).tolist()
    samples, cluster = samples_of(lengths), cluster_of(n_replicas)
    cost = linear_cost((1.0, 2.0), (0.02, 0.03), weights_ms=weights_ms)
    found = find(samples, cluster, 200_000, cost=cost, split_backward=split_backward)
    best_ms = min(
        makespan_ms(replicas, cluster, cost, split_backward=split_backward)
        for replicas in every_plan(samples, n_replicas)
    )
    assert found[-1][1] == pytest.approx(best_ms, rel=1e-12)


def test_reductions_follow_the_passes_of_every_stage_and_slow_replicas_stretch_both() -> None:
    # F and B of 1 ms each and transfers of 1 ms: the last stage ends after 4 ms, the first after 6.
    for slowness in (1.0, 1.5):
        found = find_in_two_samples(np.array([slowness]), reduce_ms=(2.0, 5.0))
        assert found[-1].makespan_ms == slowness * 9.0
        (replica,) = found[-1].replicas
        assert replica.tolist() == [[0, 2, 0]]


def find_in_two_samples(
    slowness: FloatArray, reduce_ms: tuple[float, float] = (0.0, 0.0)
) -> list[_kernels.FoundPlan]:
    """Plans of two samples that may run alone or together, all alike."""
    windows = (np.zeros(2, np.int32), np.array([[[0, 2]]]), np.zeros(2, np.int32))
    costs = _kernels.WindowCosts(_kernels.CostTable(np.ones((1, 2, len(Cost)))), *windows)
    link, reductions = _kernels.Link(0.0, 1.0, True), np.array(reduce_ms)
    (found,) = _kernels.find_plans(
        [costs], np.full(2, np.inf), link, False, reductions, slowness, 10_000, 0
    )
    return found


SPACES_COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True)
TWO_STAGES = Cluster(n_stages=2, device_memory_bytes=10**9)
BOTH = (Layout.PADDED, Layout.PACKED)
SAMPLES = samples_of([100, 3, 9, 97, 11, 16, 40, 41])


def test_packed_rows_have_an_order_of_equal_halves_besides() -> None:
    by_length, equal = search_spaces(SAMPLES, SPACES_COST, TWO_STAGES, layouts=BOTH)
    assert by_length.samples == order_samples(SAMPLES)
    assert equal.samples == halved(order_samples(SAMPLES))
    assert {mode.layout for mode in equal.modes} == {Layout.PACKED}


def test_samples_that_run_padded_only_leave_out_the_order_of_packed_rows() -> None:
    padded, packed = (
        linear_cost((1.0, 2.0), (0.02, 0.03), token_bytes=each) for each in (2.0, 1000.0)
    )
    cost = packed_apart(padded, packed)
    cluster = TWO_STAGES.model_copy(update={"device_memory_bytes": 50_000})
    (table,) = search_spaces(SAMPLES, cost, cluster, layouts=BOTH)
    assert table.samples == order_samples(SAMPLES)


def test_pairs_have_two_orders() -> None:
    rates = AnalyticConfig(flops_per_ms=1e6, memory_bytes_per_ms=1e6)
    cost = analytic_cost(T5_SHAPE, equal_shares(T5_SHAPE, TWO_STAGES), TWO_STAGES, rates)
    samples = [Sample(i, n, 30 - n) for i, n in enumerate(range(2, 26, 3))]
    tables = list(search_spaces(samples, cost, TWO_STAGES))
    assert [table.samples for table in tables] == orders(samples, is_encoder_decoder=True)
    assert len(list(search_spaces(samples, cost, TWO_STAGES, layouts=BOTH))) == 3


def short_rows(shapes: Shapes, costs: StageCosts) -> StageCosts:
    """A device that waits for launches: up to 512 tokens take as long, and more do not fit."""
    costs.table[shapes.n_rows * shapes.row_tokens > 512] = np.inf
    return costs


def test_as_few_full_rows_are_found_as_hold_all_tokens() -> None:
    lengths = np.random.default_rng(0).lognormal(3.5, 0.8, 200).clip(4, 256).astype(int).tolist()
    while sum(lengths) > 8 * 512 - 80:
        lengths.pop()
    cost = changed(linear_cost((10.0,), (1e-6,)), short_rows)
    cluster = Cluster(n_replicas=4, n_stages=1, device_memory_bytes=10**9)
    search = BestOfSearch([adaptive], SearchConfig(effort=0), cost, cluster, (Layout.PACKED,))
    pipelines = search.choose(samples_of(lengths)).pipelines
    assert [len(pipeline.microbatches) for pipeline in pipelines] == [2] * 4


KINDS = np.array([0, 2, 2, 1, 2], np.int32)
ROOM = np.array([30.0, 40.0, 25.0, 35.0, 50.0])
REDUCE_MS = np.array([9.0, 0.0, 4.0, 0.0, 7.0])


def of_kinds(seed: int) -> FloatArray:
    table = np.random.default_rng(seed).uniform(1, 10, (3, 3, len(Cost)))
    table[..., Cost.BACKWARD_MS] += table[..., Cost.WEIGHT_MS]
    return table


@pytest.mark.parametrize("seed", range(10))
def test_plans_are_those_of_all_stages(seed: int) -> None:
    table = of_kinds(seed)
    tables = _kernels.CostTable(table, KINDS), _kernels.CostTable(table[:, KINDS].copy())
    windows = [_kernels.WindowCosts(each, CELLS, SPANS, ROWS) for each in tables]
    for split in (False, True):
        plans, of_all_stages = _kernels.find_plans(
            windows, ROOM, LINK, split, REDUCE_MS, np.ones(2), 12_500, seed
        )
        ends_ms = [plan.makespan_ms for plan in plans]
        assert ends_ms == [plan.makespan_ms for plan in of_all_stages]


@pytest.mark.parametrize("seed", range(5))
def test_schedules_and_their_times_are_those_of_all_stages(seed: int) -> None:
    costs = StageCosts(of_kinds(seed), KINDS)
    of_kind, of_all = costs.checked, StageCosts(costs.table).checked
    for split in (False, True):
        codes = _kernels.list_schedule(of_kind, ROOM, LINK, split)
        np.testing.assert_array_equal(codes, _kernels.list_schedule(of_all, ROOM, LINK, split))
        found, expected = (
            _kernels.simulate(codes, each, np.zeros(5), LINK) for each in (of_kind, of_all)
        )
        np.testing.assert_array_equal(found.end_ms, expected.end_ms)
        np.testing.assert_array_equal(found.peak_bytes, expected.peak_bytes)
    expected_codes = _kernels.cyclic_schedule(of_all, ROOM)
    np.testing.assert_array_equal(_kernels.cyclic_schedule(of_kind, ROOM), expected_codes)


def test_slices_keep_what_the_first_stage_of_a_kind_does() -> None:
    kept = np.array([7.0, 7.0, 3.0, 5.0, 3.0])
    kinds = np.array([2, 2, 0, 1, 0], np.int32)
    memory = SliceMemory(kept, 2 * kept, 3 * kept)
    assert memory.of_kinds(kinds).kept.tolist() == [3, 5, 7]
    assert memory.of_kinds(None) is memory


@pytest.mark.parametrize("kinds", [[0, 3], [-1], [], [0, 2]])
def test_kinds_that_do_not_exist_are_refused(kinds: list[int]) -> None:
    with pytest.raises(ValueError, match="kind_of_stage must"):
        _kernels.CostTable(of_kinds(0), np.array(kinds, np.int32))
