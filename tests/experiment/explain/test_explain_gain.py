"""Comparison of a plan with 1F1B; micro-batches of one row, with costs computed by hand."""

from collections.abc import Sequence

import pytest
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.experiment.show_plan import explain_gain
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

COST = linear_cost(launch_ms=(0.0, 0.0), token_ms=(0.1, 0.1), token_bytes=1.0)
ROWS = [PaddedRows((0,), 80), PaddedRows((1,), 80)]  # 4 ms each way; 80 bytes, 40 on top


def gain(rows: Sequence[MicroBatch], rule: ScheduleRule, memory_bytes: int) -> str:
    link = Link(latency_ms=0.0, bytes_per_ms=1e12)
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes, link=link)
    pipeline = schedule_pipeline(rows, COST, cluster, [rule])
    return explain_gain(Choice((Candidate("by hand", [pipeline], COST),)), COST, cluster)


def test_as_long_as_1f1b_is_no_gain() -> None:
    assert gain(ROWS, cyclic, 1000) == (
        "the same micro-batches in 1F1B: 24.0 ms, 0.0 % more than the 24.0 ms of the plan"
    )


def test_a_long_micro_batch_after_a_short_one_gains_by_another_order() -> None:
    rows = [PaddedRows((i,), n_tokens) for i, n_tokens in enumerate((80, 8, 80))]
    assert gain(rows, adaptive, 1000) == (
        "the same micro-batches in 1F1B: 32.0 ms, 29.0 % more than the 24.8 ms of the plan"
    )


@pytest.mark.parametrize("memory_bytes", [120, 199])
def test_1f1b_may_need_more_memory_than_there_is(memory_bytes: int) -> None:
    assert gain(ROWS, adaptive, memory_bytes).startswith(
        "the same micro-batches in 1F1B: infeasible: 1f1b needs 200 bytes on stage 0, but "
        f"cluster.device_memory_bytes is {memory_bytes}"
    )
