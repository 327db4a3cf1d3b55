from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples.linear_cost import changed, linear_cost, samples_of, schedule_pipeline
from tests.examples.sliced_case import sliced_row, slices_of

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Shapes,
    SliceMemory,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip, longest_trip, lower_bound
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.rules import RULES, adaptive
from dynapipe_hpc.planner.schedule.schedule_rule import CodeArray, kernel_link
from dynapipe_hpc.planner.schedule.simulate import iteration_ms


def least_makespan_ms(
    costs: StageCosts,
    link: Link,
    *,
    split: bool,
    limit_bytes: FloatArray | None = None,
    reduce_ms: float | FloatArray = 0.0,
) -> float:
    """Of all schedules that keep within memory; infinite if there is none.

    A stage ends `reduce_ms` after its last pass, when its gradients are reduced. Slices of a sample
    go forward in their order, and back in the reverse.
    """
    orders = every_order(costs.n_microbatches, split=split)
    rows = [
        [order for order in orders.tolist() if _may_be(order, costs, stage, limit_bytes)]
        for stage in range(costs.n_stages)
    ]
    static_bytes, same_link = np.zeros(costs.n_stages), kernel_link(link)
    timelines = (
        _kernels.simulate(np.array(schedule, np.int32), costs.checked, static_bytes, same_link)
        for schedule in product(*rows)
    )
    ends_ms = (
        (timeline.end_ms[:, -1] + reduce_ms).max()
        for timeline in timelines
        if timeline.makespan_ms < np.inf
    )
    return float(min(ends_ms, default=np.inf))


@cache
def every_order(n_microbatches: int, *, split: bool) -> CodeArray:
    """Pass codes of all orders of one stage, F before B before W; shape (n_orders, n_passes)."""
    n_kinds = 3 if split else 2
    return np.array(list(_orders((0,) * n_microbatches, n_kinds)), np.int32)


def _orders(done: tuple[int, ...], n_kinds: int) -> Iterator[list[int]]:
    """Orders that may follow when so many passes of each micro-batch are done."""
    if all(n == n_kinds for n in done):
        yield []
    for i, n in enumerate(done):
        if n < n_kinds:
            for rest in _orders((*done[:i], n + 1, *done[i + 1 :]), n_kinds):
                yield [3 * i + n, *rest]


def _may_be(
    order: list[int], costs: StageCosts, stage: int, limit_bytes: FloatArray | None
) -> bool:
    if costs.later_slices is not None:
        place = {code: i for i, code in enumerate(order)}
        for i in np.flatnonzero(costs.later_slices).tolist():
            if place[3 * i] > place[3 * i + 3] or place[3 * i + 1] < place[3 * i + 4]:
                return False
    if limit_bytes is None:
        return True
    last, kept = max(code % 3 for code in order), 0.0
    for code in order:
        i, kind = divmod(code, 3)
        forward = costs.forward_transient_bytes[i, stage]
        backward = costs.backward_transient_bytes[i, stage]
        kept += costs.stored_bytes[i, stage] if kind == 0 else 0.0
        if kept + (forward if kind == 0 else backward) > limit_bytes[stage]:
            return False
        kept -= costs.stored_bytes[i, stage] if kind == last else 0.0
    return True


def every_partition(samples: Sequence[Sample]) -> Iterator[list[list[Sample]]]:
    """All ways to put samples into groups, neighbours or not."""
    if not samples:
        yield []
        return
    for groups in every_partition(samples[1:]):
        yield [[samples[0]], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [samples[0], *group], *groups[i + 1 :]]


ROUNDING = 1 + 1e-9
Plans = Iterator[list[list[MicroBatch]]]


def kind_of(microbatches: Sequence[MicroBatch], cost: CostModel) -> list[Pipeline]:
    """A plan of the kind that a bound is asked for."""
    ample = Cluster(n_stages=len(cost.static_bytes), device_memory_bytes=10**12)
    return [schedule_pipeline(microbatches, cost, ample, [adaptive])]


def packed_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, split: bool
) -> float:
    kind = kind_of([packed_microbatch(samples, Recompute.NONE)], cost)
    return makespan_bound_ms(kind, samples, cost, cluster, split=split)


def makespan_bound_ms(
    kind: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    split: bool,
) -> float:
    bound = lower_bound(kind, samples, cost, cluster, may_split=split)
    return bound.iteration_ms - float(cost.reduce_ms.min()) - cost.step_ms


def in_every_way(samples: Sequence[Sample], cost: CostModel) -> Iterator[MicroBatch]:
    """In both layouts and all modes."""
    for mode in cost.recompute_modes:
        yield padded_microbatch(samples, mode)
        yield packed_microbatch(samples, mode)


def plans_in_every_way(samples: Sequence[Sample], cost: CostModel, n_replicas: int) -> Plans:
    for groups in every_partition(samples):
        for ways in product(*(in_every_way(group, cost) for group in groups)):
            for owners in product(range(n_replicas), repeat=len(ways)):
                replicas = [
                    [m for m, owner in zip(ways, owners, strict=True) if owner == replica]
                    for replica in range(n_replicas)
                ]
                if all(replicas):
                    yield replicas


def least_of_all_ms(plans: Plans, cost: CostModel, cluster: Cluster, *, split: bool) -> float:
    """Of every plan and every schedule that keeps within memory."""
    room_bytes = activation_room_bytes(cost, cluster)
    known: dict[frozenset[MicroBatch], float] = {}

    def replica_ms(microbatches: list[MicroBatch]) -> float:
        key = frozenset(microbatches)
        if key not in known:
            costs = microbatch_costs(microbatches, cost)
            known[key] = (
                least_makespan_ms(
                    costs,
                    cluster.link,
                    split=split,
                    limit_bytes=room_bytes,
                    reduce_ms=cost.reduce_ms - cost.reduce_ms.min(),
                )
                if fits(costs, room_bytes).all()
                else np.inf
            )
        return known[key]

    return min(max(map(replica_ms, plan)) for plan in plans)


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=3)
LINKS = st.builds(Link, latency_ms=st.sampled_from([0.0, 2.0]), full_duplex=st.booleans())
LAUNCHES = st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 2)
PER_TOKEN = st.tuples(*[st.sampled_from([0.02, 0.1, 0.3])] * 2)
WEIGHTS = st.sampled_from([(), (6.0, 1.0), (0.0, 9.0)])


def drawn_costs(**settings: object) -> st.SearchStrategy[CostModel]:
    fixed = {name: st.just(value) for name, value in settings.items()}
    return st.builds(
        linear_cost, launch_ms=LAUNCHES, token_ms=PER_TOKEN, weights_ms=WEIGHTS, **fixed
    )


every_split = pytest.mark.parametrize(("split", "n_samples"), [(False, 3), (True, 2)])


@every_split
@given(
    lengths=LENGTHS,
    cost=drawn_costs(has_targets=True),
    link=LINKS,
    n_replicas=st.integers(1, 2),
)
@settings(max_examples=50, deadline=None)
def test_no_schedule_of_the_same_pairs_is_shorter(
    split: bool,
    n_samples: int,
    lengths: list[tuple[int, int]],
    cost: CostModel,
    link: Link,
    n_replicas: int,
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(lengths[:n_samples])]
    assume(n_replicas <= len(samples))
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=10**9, link=link)
    rows = [padded_microbatch([s], Recompute.NONE, is_encoder_decoder=True) for s in samples]
    replicas: list[list[MicroBatch]] = [[*rows[r::n_replicas]] for r in range(n_replicas)]
    best_ms = least_of_all_ms(iter([replicas]), cost, cluster, split=split)
    kind = [pipeline for each in replicas for pipeline in kind_of(each, cost)]
    bound_ms = makespan_bound_ms(kind, samples, cost, cluster, split=split)
    assert 0 < bound_ms <= best_ms * ROUNDING


@every_split
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    cost=drawn_costs(token_bytes=2.0),
    link=LINKS,
    n_replicas=st.integers(1, 2),
    room_tokens=st.sampled_from([64, 100, 150, 10_000]),
)
@settings(max_examples=20, deadline=None)
def test_no_plan_in_any_layout_is_shorter(
    split: bool,
    n_samples: int,
    lengths: list[int],
    cost: CostModel,
    link: Link,
    n_replicas: int,
    room_tokens: int,
) -> None:
    samples = samples_of(lengths[:n_samples])
    assume(n_replicas <= len(samples))
    cluster = Cluster(
        n_replicas=n_replicas, n_stages=2, device_memory_bytes=3 * room_tokens, link=link
    )
    plans = plans_in_every_way(samples, cost, n_replicas)
    best_ms = least_of_all_ms(plans, cost, cluster, split=split)
    assert 0 < packed_bound_ms(samples, cost, cluster, split=split) <= best_ms * ROUNDING


def pair_cost(
    launch_ms: tuple[float, ...],
    token_ms: tuple[float, ...],
    *,
    pair_ms: float = 0.0,
    mask_bytes: float = 0.0,
    of_token_bytes: tuple[float, float, float] = (0.0, 0.0, 0.0),
    window: float = np.inf,
    recomputes: bool = False,
) -> CostModel:
    """Pairs of tokens take time, of which a part is hidden in each launch; slices share memory."""
    cost = linear_cost(launch_ms, token_ms, window=window, recomputes=recomputes)

    def change(shapes: Shapes, costs: StageCosts) -> StageCosts:
        rows, length = shapes.n_rows, np.asarray(shapes.row_tokens, np.float64)
        pairs = rows * length**2
        if np.isfinite(window):
            begin = np.where(np.asarray(rows) < 1, length * (1 - rows) / 2, 0.0)
            far = [np.maximum(n - window, 0) ** 2 for n in (length - begin, begin)]
            pairs = pairs - np.maximum(rows, 1) * (far[0] - far[1])
        attention_ms = np.maximum(pair_ms * pairs - 0.3 * max(launch_ms), 0.0)
        costs.of_kinds[..., [Cost.FORWARD_MS, Cost.BACKWARD_MS]] += attention_ms[:, None, None]
        # A row keeps its mask if it is longer than the window, and no slice behind others does.
        masked = mask_bytes * length**2 * ((rows >= 1) & (length > window))
        costs.of_kinds[..., Cost.STORED_BYTES] += masked[:, None]
        return costs

    slice_memory = SliceMemory(*np.tile(of_token_bytes, (len(launch_ms), 1)).T)
    return replace(changed(cost, change), slice_memory=slice_memory)


def rows_of(sample: Sample, cuts: Sequence[int], modes: Sequence[Recompute]) -> list[MicroBatch]:
    """A row for the sample, or for each of its slices."""
    rows = zip(slices_of(sample, cuts), modes, strict=False)
    return [
        replace(sliced_row(sample, part), recompute=mode, slice=part if cuts else None)
        for part, mode in rows
    ]


@pytest.mark.parametrize("split", [False, True])
@given(
    length=st.integers(9, 60),
    other=st.integers(0, 60),
    n_cuts=st.integers(1, 2),
    cut=st.integers(1, 7),
    modes=st.tuples(*[st.sampled_from(list(Recompute)[::2])] * 4),
    cost=st.builds(
        pair_cost,
        launch_ms=LAUNCHES,
        token_ms=PER_TOKEN,
        recomputes=st.just(True),
        pair_ms=st.sampled_from([0.0, 1e-3, 1e-2]),
        of_token_bytes=st.sampled_from([(0.0, 0.0, 0.0), (0.5, 1.0, 0.25), (0.5, 2.0, 0.5)]),
        window=st.sampled_from([np.inf, np.inf, 8.0, 20.0, 50.0, 100.0]),
        mask_bytes=st.sampled_from([0.0, 0.1]),
    ),
    n_replicas=st.integers(1, 2),
    room_tokens=st.sampled_from([64, 100, 10_000]),
)
@settings(max_examples=40, deadline=None)
def test_no_plan_with_slices_in_any_schedule_within_memory_is_shorter(
    split: bool,
    length: int,
    other: int,
    n_cuts: int,
    cut: int,
    modes: tuple[Recompute, ...],
    cost: CostModel,
    n_replicas: int,
    room_tokens: int,
) -> None:
    cuts = list(range(8 * cut, length, 8))[: 1 if split or other else n_cuts]
    assume(cuts and (other or n_replicas == 1) and not (split and other and n_replicas == 1))
    cluster = Cluster(
        n_replicas=n_replicas,
        n_stages=2,
        device_memory_bytes=3 * room_tokens,
        link=Link(latency_ms=0.5),
    )
    samples = samples_of([length, *[other] * bool(other)])
    rows = [rows_of(samples[0], cuts, modes), *(rows_of(s, [], modes[3:]) for s in samples[1:])]
    replicas = rows if n_replicas == 2 else [[row for each in rows for row in each]]
    room_bytes = activation_room_bytes(cost, cluster)
    best_ms = max(
        least_makespan_ms(
            microbatch_costs(each, cost), cluster.link, split=split, limit_bytes=room_bytes
        )
        for each in replicas
    )
    assume(best_ms < np.inf)
    kind = [pipeline for each in replicas for pipeline in kind_of(each, cost)]
    bound_ms = makespan_bound_ms(kind, samples, cost, cluster, split=split)
    assert 0 < bound_ms <= best_ms * ROUNDING


AMPLE = Cluster(n_stages=4, device_memory_bytes=10**9, link=Link(latency_ms=0.0))


def sliced_bound_ms(lengths: Sequence[int], cluster: Cluster, pair_ms: float = 0.0) -> float:
    cost = pair_cost((0.0,) * 4, (0.01,) * 4, of_token_bytes=(0.5, 1.0, 0.25), pair_ms=pair_ms)
    samples = samples_of(lengths)
    kind = kind_of(rows_of(samples[0], [lengths[0] // 2], [Recompute.NONE] * 2), cost)
    return makespan_bound_ms(kind, samples, cost, cluster, split=False)


def test_the_longest_sample_need_not_go_there_and_back_if_it_is_cut() -> None:
    lengths = [6_000, *[500] * 4]
    cost = pair_cost((0.0,) * 4, (0.01,) * 4)
    whole_ms = packed_bound_ms(samples_of(lengths), cost, AMPLE, split=False)
    assert whole_ms == pytest.approx(4 * 60, rel=2e-2)
    assert sliced_bound_ms(lengths, AMPLE) == pytest.approx(80, rel=2e-2)


def test_pairs_of_slices_are_counted() -> None:
    work_ms = 0.01 * 6_000 + 2e-6 * 6_000**2
    assert sliced_bound_ms([6_000], AMPLE, pair_ms=1e-6) == pytest.approx(work_ms, rel=3e-2)


def test_a_replica_has_the_work_of_the_longest_sample_at_least() -> None:
    cluster = AMPLE.model_copy(update={"n_replicas": 4})
    assert sliced_bound_ms([6_000, *[100] * 10], cluster) == pytest.approx(60, rel=2e-2)


@pytest.mark.parametrize("weights_ms", [(), (5.0, 9.0), (9.0, 5.0)])
def test_one_sample_takes_as_long_as_the_bound(weights_ms: tuple[float, ...]) -> None:
    samples, cost = samples_of([100]), linear_cost(weights_ms=weights_ms)
    cluster = Cluster(n_stages=2, device_memory_bytes=10_000)
    pipeline = schedule_pipeline([PaddedRows((0,), 100)], cost, cluster, [RULES["1f1b"]])
    bound = lower_bound([pipeline], samples, cost, cluster, may_split=False)
    assert bound.iteration_ms == pytest.approx(iteration_ms([pipeline.timeline], cost), rel=5e-2)
    assert bound.longest_trip_ms == pytest.approx(pipeline.timeline.makespan_ms, rel=5e-2)


# A token takes 0.02, 0.04 and 0.01 ms on the stages, half of it forward, and a byte per boundary.
TOKEN_MS = (0.02, 0.04, 0.01)
LINKED = Cluster(
    n_stages=3, device_memory_bytes=10_000_000, link=Link(latency_ms=0.5, bytes_per_ms=800.0)
)


def trip_of(*lengths: int, longest_row: int = 10_000) -> LongestTrip:
    """In a plan of one micro-batch for each of these numbers of tokens."""
    cost = linear_cost((0.0,) * 3, TOKEN_MS, recomputes=True)
    rows = [PaddedRows((i,), tokens) for i, tokens in enumerate(lengths)]
    pipeline = schedule_pipeline(rows, cost, LINKED, [adaptive])
    known = linear_cost((0.0,) * 3, TOKEN_MS, recomputes=True, longest_row=longest_row)
    return longest_trip([pipeline], samples_of(lengths), known, LINKED, may_split=False)


def test_a_long_sample_adds_what_its_trip_takes_beyond_the_time_that_ranks_are_busy() -> None:
    trip = trip_of(64, 800, 64)
    # Through three stages forward and backward in its fastest mode, over two boundaries each way.
    trip_ms = 800 * sum(TOKEN_MS) + 4 * (0.5 + 800 / 800)
    assert trip.trip_ms == pytest.approx(trip_ms, rel=1e-2)
    assert trip.added_ms == pytest.approx(trip.trip_ms - 928 * sum(TOKEN_MS) / 3)
    assert trip.sample.sample_id == 1


def test_in_a_batch_with_work_for_all_ranks_no_sample_adds_any() -> None:
    assert trip_of(*[64] * 12).added_ms == 0
    # n of a length keep the average of three ranks busy for n / 3 of the time that one takes alone.
    assert trip_of(*[800] * 5).added_ms == 0
    assert trip_of(800, 800).added_ms > 0


def test_a_sample_that_was_not_measured_alone_adds_none() -> None:
    assert trip_of(800, 96, longest_row=50).added_ms == 0


def test_many_samples_may_share_a_launch() -> None:
    cost = linear_cost((5.0,) * 4, (1e-9,) * 4)
    samples = samples_of([8] * 16)
    (pipeline,) = kind_of([packed_microbatch(samples, Recompute.NONE)], cost)
    bound_ms = packed_bound_ms(samples, cost, AMPLE, split=False)
    assert bound_ms <= pipeline.timeline.makespan_ms * ROUNDING


def test_a_slice_that_keeps_no_mask_may_fit_where_a_row_does_not() -> None:
    cost, bare = (
        pair_cost((1.0,) * 4, (0.01,) * 4, window=8, mask_bytes=mask_bytes)
        for mask_bytes in (1e9, 0.0)
    )
    cluster = AMPLE.model_copy(update={"device_memory_bytes": 40_000})
    samples = samples_of([4_000])
    kind = kind_of(rows_of(samples[0], [2_000], [Recompute.NONE] * 2), bare)
    assert makespan_bound_ms(kind, samples, cost, cluster, split=False) < 4_000 * 0.01 + 10
