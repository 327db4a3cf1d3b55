"""The planner of the paper's authors, against their published plans."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest
from reproduce.authors.authors import AuthorsPlanner
from reproduce.authors.authors_batches import AuthorsBatches
from tests.examples.published import Family, Published, published_plans

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.planner.batch.order import balance_replicas, order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import Shapes

BATCHES = AuthorsBatches()


@pytest.fixture(scope="module", params=["gpt", "t5"])
def published(request: pytest.FixtureRequest) -> list[Published]:
    family: Family = request.param
    return published_plans(family)


@pytest.fixture(scope="module")
def formed(published: list[Published]) -> list[list[MicroBatch]]:
    """The micro-batches of the baseline for each published batch."""
    return [BATCHES(batch.samples, batch.cost, batch.cluster) for batch in published]


def sizes(batch: Published, microbatches: Sequence[MicroBatch]) -> list[tuple[int, int, int]]:
    """Rows and lengths, where the authors' rows of a GPT are a token shorter than samples."""
    if batch.cost.is_encoder_decoder:
        return [(m.n_rows, m.row_tokens, m.target_tokens) for m in microbatches]
    tokens = {sample.sample_id: sample.tokens for sample in batch.samples}
    longest = (max(tokens[i] for i in m.sample_ids) for m in microbatches)
    return [(m.n_rows, padded(n - 1), 0) for m, n in zip(microbatches, longest, strict=True)]


def test_the_objective_is_the_published_one(published: list[Published]) -> None:
    for batch in published:
        ordered = (order_pairs if batch.cost.is_encoder_decoder else order_samples)(batch.samples)
        found = BATCHES.cut(ordered, batch.cost, batch.cluster)
        assert found is not None
        assert found[0].objective_ms == pytest.approx(batch.plan["dp_objective_ms"], rel=2e-7)


def test_micro_batches_are_the_published_ones(
    published: list[Published], formed: list[list[MicroBatch]]
) -> None:
    different = 0
    for batch, microbatches in zip(published, formed, strict=True):
        found = sizes(batch, microbatches)
        theirs = [tuple(shape) for replica in batch.plan["replicas"] for shape in replica["shapes"]]
        assert len(found) == len(theirs)
        different += sorted(found) != sorted(theirs)
    assert different <= 1  # of 24 of the GPT; there the same objective is reached in another way


def test_replicas_have_the_published_work(
    published: list[Published], formed: list[list[MicroBatch]]
) -> None:
    # Micro-batches of equal time, which may be on either replica, differ a little where their
    # rows are a token shorter.
    for batch, microbatches in zip(published, formed, strict=True):
        replicas = balance_replicas(microbatches, batch.cost, batch.cluster.n_replicas)
        shares = [[microbatches[i] for i in replica] for replica in replicas]
        assert any(
            all(has_work(batch, *pair) for pair in zip(order, batch.plan["replicas"], strict=True))
            for order in permutations(shares)
        )


def has_work(
    batch: Published, microbatches: Sequence[MicroBatch], replica: Mapping[str, Any]
) -> bool:
    """Whether micro-batches take as long as those of a published replica, in its mode."""
    shapes = Shapes.padded(*np.array(sizes(batch, microbatches)).T.copy())
    work_ms = batch.cost.stage_costs(shapes, Recompute.from_text(replica["rc"])).bottleneck_ms
    sum_ms, max_ms = work_ms.sum(), work_ms.max()
    eq1_ms = (batch.cluster.n_stages - 1) * max_ms + sum_ms
    published = [replica[name] for name in ("sum_t_ms", "max_t_ms", "eq1_ms")]
    return [sum_ms, max_ms, eq1_ms] == pytest.approx(published, rel=5e-4)


def test_iterations_take_as_long_as_published(published: list[Published]) -> None:
    ratios = []
    for batch in published:
        baseline = AuthorsPlanner.with_interval(batch.cost, batch.cluster)
        choice = baseline.choose(batch.samples)
        ratios.append(choice.best.makespan_ms / batch.plan["predicted_iteration_ms"])
    assert geometric_mean(ratios) == pytest.approx(1, abs=0.015)
    assert max(abs(ratio - 1) for ratio in ratios) < 0.04  # theirs is drawn without a seed
