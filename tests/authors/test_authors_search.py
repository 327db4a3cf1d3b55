"""The authors' choice of mode, order and schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce.authors.authors_search import AuthorsSearch
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError

COST = linear_cost(launch_ms=(1.0,) * 3, token_ms=(0.02, 0.01, 0.03), recomputes=True)
SMALLEST = 64 * (2 + 1)  # bytes that the longest sample needs alone without recomputation
lengths = st.lists(st.integers(1, 64), min_size=1, max_size=12)


def cluster_of(memory_bytes: int) -> Cluster:
    return Cluster(n_stages=3, device_memory_bytes=memory_bytes)


def alone(lengths: list[int]) -> list[MicroBatch]:
    return [padded_microbatch([sample], Recompute.NONE) for sample in samples_of(lengths)]


def search(lengths: list[int], memory_bytes: int) -> Pipeline:
    return AuthorsSearch()(alone(lengths), COST, cluster_of(memory_bytes))


@given(lengths, st.integers(SMALLEST, 20 * SMALLEST))
def test_plans_keep_within_memory_in_one_mode(lengths: list[int], memory_bytes: int) -> None:
    pipeline = search(lengths, memory_bytes)
    assert (pipeline.timeline.peak_bytes <= memory_bytes).all()
    assert len({m.recompute for m in pipeline.microbatches}) == 1
    rows = sorted(m.rows for m in pipeline.microbatches)
    assert rows == [((i,),) for i in range(len(lengths))]


@given(lengths)
def test_with_ample_memory_no_plan_of_the_given_order_is_better(lengths: list[int]) -> None:
    cluster = cluster_of(10**9)
    pipeline = search(lengths, 10**9)
    for mode in COST.recompute_modes:
        in_mode = [replace(m, recompute=mode) for m in alone(lengths)]
        for name in ("cyclic", "1f1b"):
            given_order = schedule_pipeline(in_mode, COST, cluster, [RULES[name]])
            assert pipeline.timeline.makespan_ms <= given_order.timeline.makespan_ms


def test_where_no_cyclic_schedule_fits_one_is_made_that_does() -> None:
    lengths = [64] * 8
    pipeline = search(lengths, SMALLEST)
    assert pipeline.rule is RULES["cyclic"]
    assert pipeline.timeline.peak_bytes.max() <= SMALLEST
    ample = search(lengths, 10**9)
    assert ample.timeline.makespan_ms < pipeline.timeline.makespan_ms


def test_a_single_stage_runs_one_micro_batch_after_the_other() -> None:
    cost = linear_cost(launch_ms=(1.0,), token_ms=(0.01,))
    cluster = Cluster(n_stages=1, device_memory_bytes=10**9)
    pipeline = AuthorsSearch()(alone([64, 8, 8]), cost, cluster)
    assert pipeline.timeline.makespan_ms == pytest.approx(3 * 1 + 0.01 * (64 + 8 + 8))


def test_equal_seeds_give_equal_plans() -> None:
    lengths = np.random.default_rng(1).integers(1, 65, size=12).tolist()
    assert search(lengths, 10**9).microbatches == search(lengths, 10**9).microbatches


def test_a_micro_batch_that_does_not_fit_in_any_mode_is_named() -> None:
    with pytest.raises(InfeasibleScheduleError, match="micro-batch 1 alone needs 192 bytes"):
        search([8, 64], 90)
