"""Bounds of all plans in which samples may run as slices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.oracles.every_schedule import least_makespan_ms

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    FloatArray,
    Shapes,
    SliceMemory,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.lower_bound import lower_bound
from dynapipe_hpc.planner.schedule.packed_bound import packed_bound_ms
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.sliced_bound import sliced_bound_ms


@dataclass(frozen=True)
class PairCost(LinearCost):
    """Pairs of tokens take time, of which a part is hidden in each launch; slices share memory."""

    pair_ms: float = 0.0
    mask_bytes: float = 0.0
    of_token_bytes: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def slice_memory(self) -> SliceMemory:
        return SliceMemory(*np.tile(self.of_token_bytes, (len(self.launch_ms), 1)).T)

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        costs = super().stage_costs(shapes, recompute, out)
        rows, length = shapes.n_rows, np.asarray(shapes.row_tokens, np.float64)
        pairs = rows * length**2
        if np.isfinite(self.window):
            begin = np.where(np.asarray(rows) < 1, length * (1 - rows) / 2, 0.0)
            far = [np.maximum(n - self.window, 0) ** 2 for n in (length - begin, begin)]
            pairs = pairs - np.maximum(rows, 1) * (far[0] - far[1])
        attention_ms = np.maximum(self.pair_ms * pairs - 0.3 * max(self.launch_ms), 0.0)
        costs.of_kinds[..., [Cost.FORWARD_MS, Cost.BACKWARD_MS]] += attention_ms[:, None, None]
        # A row keeps its mask if it is longer than the window, and no slice behind others does.
        masked = self.mask_bytes * length**2 * ((rows >= 1) & (length > self.window))
        costs.of_kinds[..., Cost.STORED_BYTES] += masked[:, None]
        return costs


def rows_of(sample: Sample, cuts: Sequence[int], modes: Sequence[Recompute]) -> list[MicroBatch]:
    """A row for the sample, or for each of its slices."""
    bounds = [0, *cuts, sample.tokens]
    parts = [Slice(begin, end, sample.tokens) for begin, end in pairwise(bounds)]
    return [
        PackedRow(
            (sample.sample_id,),
            -(-(part.end - part.begin) // 8) * 8,
            (0, part.end - part.begin),
            mode,
            slice=part if cuts else None,
        )
        for part, mode in zip(parts, modes, strict=False)
    ]


@pytest.mark.parametrize("split", [False, True])
@given(
    length=st.integers(9, 60),
    other=st.integers(0, 60),
    n_cuts=st.integers(1, 2),
    cut=st.integers(1, 7),
    modes=st.tuples(*[st.sampled_from(list(Recompute)[::2])] * 4),
    launch_ms=st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 2),
    token_ms=st.tuples(*[st.sampled_from([0.02, 0.1, 0.3])] * 2),
    pair_ms=st.sampled_from([0.0, 1e-3, 1e-2]),
    of_token_bytes=st.sampled_from([(0.0, 0.0, 0.0), (0.5, 1.0, 0.25), (0.5, 2.0, 0.5)]),
    window=st.sampled_from([np.inf, np.inf, 8.0, 20.0, 50.0, 100.0]),
    mask_bytes=st.sampled_from([0.0, 0.1]),
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
    launch_ms: tuple[float, float],
    token_ms: tuple[float, float],
    pair_ms: float,
    of_token_bytes: tuple[float, float, float],
    window: float,
    mask_bytes: float,
    n_replicas: int,
    room_tokens: int,
) -> None:
    cuts = list(range(8 * cut, length, 8))[: 1 if split or other else n_cuts]
    assume(cuts and (other or n_replicas == 1) and not (split and other and n_replicas == 1))
    cost = PairCost(
        launch_ms,
        token_ms,
        recomputes=True,
        pair_ms=pair_ms,
        of_token_bytes=of_token_bytes,
        window=window,
        mask_bytes=mask_bytes,
    )
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
    bound_ms = sliced_bound_ms(samples, cost, cluster, may_split=split)
    assert 0 < bound_ms <= best_ms * (1 + 1e-9)


AMPLE = Cluster(n_stages=4, device_memory_bytes=10**9, link=Link(latency_ms=0.0))


def bound_ms(lengths: Sequence[int], cluster: Cluster = AMPLE, *, pair_ms: float = 0.0) -> float:
    cost = PairCost((0.0,) * 4, (0.01,) * 4, of_token_bytes=(0.5, 1.0, 0.25), pair_ms=pair_ms)
    return sliced_bound_ms(samples_of(lengths), cost, cluster, may_split=False)


def test_the_longest_sample_need_not_go_there_and_back() -> None:
    lengths = [6_000, *[500] * 4]
    cost = PairCost((0.0,) * 4, (0.01,) * 4)
    whole_ms = packed_bound_ms(samples_of(lengths), cost, AMPLE, may_split=False)
    assert whole_ms == pytest.approx(4 * 60, rel=2e-3)
    assert bound_ms(lengths) == pytest.approx(80, rel=5e-3)


@pytest.mark.parametrize("memory_bytes", [10**9, 3_000])
def test_pairs_of_slices_are_counted(memory_bytes: int) -> None:
    cluster = AMPLE.model_copy(update={"device_memory_bytes": memory_bytes})
    work_ms = 0.01 * 6_000 + 2e-6 * 6_000**2
    assert bound_ms([6_000], cluster, pair_ms=1e-6) == pytest.approx(work_ms, rel=1e-2)


@pytest.mark.parametrize("window", [50, 4_096])
def test_pairs_that_take_longer_than_tokens_have_a_bound(window: int) -> None:
    cost = PairCost((0.0, 0.0), (0.02, 0.02), pair_ms=1e-2, window=window)
    cluster = AMPLE.model_copy(update={"n_stages": 2})
    found = sliced_bound_ms(samples_of([30]), cost, cluster, may_split=False)
    assert 0 < found <= 0.02 * 30 + 2e-2 * 30**2


def test_a_slice_that_keeps_no_mask_may_fit_where_a_row_does_not() -> None:
    cost = PairCost((1.0,) * 4, (0.01,) * 4, window=50, mask_bytes=1.0)
    cluster = AMPLE.model_copy(update={"device_memory_bytes": 40_000})
    found = sliced_bound_ms(samples_of([4_000]), cost, cluster, may_split=False)
    # A row of 200 tokens keeps a mask of 40,000 bytes; all slices but the first may be longer.
    assert found < 4_000 * 0.01 + 2 * (1 + 4_000 / 1_000)


@pytest.mark.parametrize("n_tokens", [600, 6_000])
def test_pairs_out_of_a_window_take_no_time(n_tokens: int) -> None:
    cost = PairCost((0.0,) * 4, (0.01,) * 4, pair_ms=1e-5, window=500)
    found = sliced_bound_ms(samples_of([n_tokens]), cost, AMPLE, may_split=False)
    work_ms = 0.01 * n_tokens + 2e-5 * (n_tokens**2 - (n_tokens - 500) ** 2)
    # Slices may be thought of as behind no tokens, or behind all: half of them do without pairs.
    assert 0.55 * work_ms < found <= work_ms


def test_a_replica_has_the_work_of_the_longest_sample_at_least() -> None:
    cluster = AMPLE.model_copy(update={"n_replicas": 4})
    assert bound_ms([6_000, *[100] * 10], cluster) == pytest.approx(60, rel=1e-2)


def test_slices_take_memory_while_they_are_under_way() -> None:
    cost = PairCost((5.0,) * 4, (0.01,) * 4, of_token_bytes=(0.5, 1.0, 0.25))
    cluster = AMPLE.model_copy(update={"device_memory_bytes": 4_000})
    bound_ms = sliced_bound_ms(samples_of([6_000] * 4), cost, cluster, may_split=False)
    # Slices of up to 1,230 tokens fit, which keep 2.25 bytes each on four stages.
    work_ms = 240 + 24_000 / 1_230 * 5
    assert bound_ms > 1.5 * work_ms


def test_plans_with_slices_have_this_bound() -> None:
    cost = PairCost((1.0, 1.0), (0.01, 0.01), pair_ms=1e-6)
    cluster = AMPLE.model_copy(update={"n_stages": 2})
    samples = samples_of([600, 90])
    rows = [
        *rows_of(samples[0], [304], [Recompute.NONE] * 2),
        *rows_of(samples[1], [], [Recompute.NONE]),
    ]
    pipeline = schedule_pipeline(rows, cost, cluster, [adaptive])
    bound = lower_bound([pipeline], samples, cost, cluster, may_split=False)
    assert bound.iteration_ms == sliced_bound_ms(samples, cost, cluster, may_split=False)
    assert bound.whole_iteration_ms == packed_bound_ms(samples, cost, cluster, may_split=False)
    # Each slice fits, but not the sample.
    scarce = cluster.model_copy(update={"device_memory_bytes": 1_500})
    bound = lower_bound([pipeline], samples[:1], cost, scarce, may_split=False)
    assert bound.iteration_ms < np.inf
    assert bound.whole_iteration_ms == np.inf
