"""The sample that alone makes an iteration longer, with times that one can compute by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Layout, PaddedRows
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.cost_model import Shapes, StageCosts
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.outlier import Outlier, find_outlier
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

# A token takes 0.02, 0.04 and 0.01 ms on the stages, half of it forward, and a byte per boundary.
TOKEN_MS = (0.02, 0.04, 0.01)
COST = linear_cost((0.0, 0.0, 0.0), TOKEN_MS, recomputes=True)
LINK = Link(latency_ms=0.5, bytes_per_ms=800.0)
CLUSTER = Cluster(n_stages=3, device_memory_bytes=10_000_000, link=LINK)
SENT_MS = 0.5 + 800 / 800


def pipeline_of(*lengths: int, rule: ScheduleRule = adaptive) -> Pipeline:
    """One micro-batch for each of these numbers of tokens."""
    batches = [PaddedRows((i,), tokens) for i, tokens in enumerate(lengths)]
    return schedule_pipeline(batches, COST, CLUSTER, [rule])


def found_in(pipelines: Sequence[Pipeline], lengths: Sequence[int]) -> Outlier | None:
    return find_outlier(pipelines, samples_of(lengths), COST, LINK)


def test_a_long_sample_adds_what_its_passes_take_beyond_the_time_that_ranks_are_busy() -> None:
    outlier = found_in([pipeline_of(64, 800, 64)], (64, 800, 64))
    assert outlier is not None
    assert (outlier.sample_id, outlier.tokens) == (1, 800)
    # Through three stages forward and backward in its fastest mode, over two boundaries each way.
    assert outlier.chain_ms == pytest.approx(800 * sum(TOKEN_MS) + 4 * SENT_MS)
    assert outlier.busy_ms == pytest.approx(928 * sum(TOKEN_MS) / 3)
    assert outlier.added_ms == pytest.approx(outlier.chain_ms - outlier.busy_ms)


def test_ranks_of_all_replicas_could_share_the_work() -> None:
    outlier = found_in([pipeline_of(64, 64), pipeline_of(800)], (64, 64, 800))
    assert outlier is not None
    assert outlier.sample_id == 2
    assert outlier.busy_ms == pytest.approx(928 * sum(TOKEN_MS) / 6)


def test_where_backward_passes_are_split_it_does_not_wait_for_gradients_of_weights() -> None:
    pipeline = pipeline_of(800, rule=adaptive_split)
    outlier = found_in([pipeline], (800,))
    assert outlier is not None
    # All forward and a quarter of each token's time backward, then on the first stage another one.
    chain_ms = 800 * (0.75 * sum(TOKEN_MS) + 0.25 * TOKEN_MS[0]) + 4 * SENT_MS
    assert outlier.chain_ms == pytest.approx(chain_ms)


def test_a_sample_that_was_not_measured_in_a_padded_row_is_passed_over() -> None:
    cost = linear_cost((0.0, 0.0, 0.0), TOKEN_MS, recomputes=True, longest_row=100)
    outlier = find_outlier([pipeline_of(96)], samples_of((800, 96)), cost, LINK)
    assert outlier is not None
    assert outlier.sample_id == 1


def test_where_no_sample_was_measured_alone_none_is_named() -> None:
    cost = linear_cost((0.0, 0.0, 0.0), TOKEN_MS, recomputes=True, longest_row=100)
    assert find_outlier([pipeline_of(96)], samples_of((800, 900)), cost, LINK) is None


def test_a_sample_takes_as_long_as_in_the_layouts_of_the_plan() -> None:
    asked: list[Layout] = []

    def change(shapes: Shapes, layout: Layout, *args: Any) -> StageCosts:
        asked.append(layout)
        return COST.price(shapes, layout, *args)

    cost = replace(COST, price=change, layouts=tuple(Layout))
    find_outlier([pipeline_of(64, 800, 64)], samples_of((64, 800, 64)), cost, LINK)
    assert set(asked) == {Layout.PADDED}


def test_a_batch_with_work_for_all_ranks_has_none() -> None:
    assert found_in([pipeline_of(*[64] * 12)], [64] * 12) is None
    # n of a length keep the average of three ranks busy for n / 3 of the time that one takes alone.
    assert found_in([pipeline_of(*[800] * 5)], [800] * 5) is None
    assert found_in([pipeline_of(800, 800)], [800] * 2) is not None
