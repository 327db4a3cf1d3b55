"""The sample that alone lengthens an iteration, against another simulator."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost
from tests.oracles.event_simulation import EventSimulation

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.outlier import Outlier, find_outlier
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, Schedule

COST = LinearCost((0.0, 0.0, 0.0), (0.03, 0.03, 0.03), weights_ms=(1.0, 2.0, 1.0))
LINK = Link(latency_ms=0.1, bytes_per_ms=1e4)
CLUSTER = Cluster(n_stages=3, device_memory_bytes=10_000_000, link=LINK)


def pipeline_of(rows: Sequence[Sequence[int]], tokens: Sequence[int]) -> Pipeline:
    batches = [MicroBatch(tuple((i,) for i in ids), n) for ids, n in zip(rows, tokens, strict=True)]
    return schedule_pipeline(batches, COST, CLUSTER, [adaptive])


def found_in(pipelines: Sequence[Pipeline], n_samples: int) -> Outlier | None:
    samples = samples_of([800 + i for i in range(n_samples)])
    return find_outlier(pipelines, samples, COST, CLUSTER.link)


def end_ms(pipeline: Pipeline, index: int | None) -> float:
    """When all weights are updated, without one micro-batch, by a clock that goes on in events."""
    left = [i for i in range(len(pipeline.microbatches)) if i != index]
    passes = [
        [Pass(p.kind, left.index(p.microbatch)) for p in stage if p.microbatch != index]
        for stage in pipeline.schedule.passes
    ]
    costs = microbatch_costs([pipeline.microbatches[i] for i in left], COST)
    simulated = EventSimulation(Schedule.of(passes), costs, LINK)
    ends_ms = np.zeros(3)
    for (stage, _), (_, ended_ms) in simulated.passes_ms.items():
        ends_ms[stage] = max(ends_ms[stage], ended_ms)
    return float((ends_ms + np.array([1.0, 2.0, 1.0])).max()) + 2.0


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_long_sample_adds_what_the_plan_without_it_saves_beyond_its_share(place: int) -> None:
    tokens = [64, 64, 64, 64]
    tokens.insert(place, 800)
    rows = [[0, 1] if n == 64 else [place] for n in tokens]
    pipeline = pipeline_of(rows, tokens)
    outlier = found_in([pipeline], 5)
    assert outlier is not None
    assert (outlier.sample_id, outlier.tokens) == (place, 800 + place)
    assert outlier.with_ms == pytest.approx(end_ms(pipeline, None))
    assert outlier.without_ms == pytest.approx(end_ms(pipeline, place))
    work_ms = 3 * 0.03 * 800
    assert outlier.share_ms == pytest.approx(work_ms / 3)
    saved_ms = end_ms(pipeline, None) - end_ms(pipeline, place)
    assert outlier.added_ms == pytest.approx(saved_ms - work_ms / 3)
    assert outlier.added_ms > 0.2 * outlier.with_ms


def test_replicas_that_wait_for_one_sample_share_its_work() -> None:
    giant, others = pipeline_of([[0]], [800]), pipeline_of([[1], [2]], [64, 64])
    outlier = found_in([others, giant], 3)
    assert outlier is not None
    assert outlier.sample_id == 0
    assert outlier.without_ms == pytest.approx(end_ms(others, None))
    assert outlier.share_ms == pytest.approx(3 * 0.03 * 800 / 6)


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        pytest.param([[i] for i in range(12)], [64] * 12, id="samples of one length"),
        pytest.param([[0], [1, 2], [3]], [64, 800, 64], id="two samples in the longest"),
        pytest.param([[0]], [800], id="one sample"),
    ],
)
def test_no_sample_is_an_outlier_that_others_resemble(
    rows: list[list[int]], tokens: list[int]
) -> None:
    n_samples = sum(map(len, rows))
    assert found_in([pipeline_of(rows, tokens)], n_samples) is None
