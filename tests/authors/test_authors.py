"""The planner of the paper's authors, against their published plans."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce.authors.authors import AuthorsPlanner
from reproduce.authors.authors_batches import AuthorsBatches
from reproduce.authors.grid_split import SingleArray, grid_limits, grid_split
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
        theirs = [tuple(shape) for replica in batch.replicas for shape in replica["shapes"]]
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
            all(has_work(batch, *pair) for pair in zip(order, batch.replicas, strict=True))
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


SINGLE = 1e-5  # relative, of a few sums in single precision
intervals = st.sampled_from([0.0, 0.5, 5.0, 40.0])


@st.composite
def tables(draw: st.DrawFn) -> SingleArray:
    """Any times; of every sample, any number of micro-batches that begin with it may be used."""
    n_samples = draw(st.integers(1, 8))
    times_ms = np.full((n_samples, n_samples), np.inf, np.float32)
    for first, row in enumerate(times_ms):
        usable = draw(st.lists(st.floats(0.125, 128, width=32), max_size=n_samples - first))
        row[: len(usable)] = usable
    return times_ms


def every_cut(n: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as sizes of consecutive groups; 2 ** (n - 1) of them."""
    if n == 0:
        yield ()
    for size in range(1, n + 1):
        for rest in every_cut(n - size):
            yield (size, *rest)


def times_of(sizes: Sequence[int], times_ms: SingleArray) -> list[float]:
    firsts = np.cumsum([0, *sizes[:-1]])
    return [float(times_ms[first, size - 1]) for first, size in zip(firsts, sizes, strict=True)]


def least_objective_ms(
    times_ms: SingleArray, limits: SingleArray, n_stages: int, n_replicas: int
) -> float:
    cuts = [times_of(sizes, times_ms) for sizes in every_cut(len(times_ms))]
    objectives = (
        (n_stages - 1) * float(limit) + sum(times) / n_replicas
        for limit in limits
        for times in cuts
        if max(times) <= limit
    )
    return min(objectives, default=math.inf)


@given(tables(), st.integers(1, 4), st.integers(1, 3), intervals)
def test_no_cut_within_a_limit_on_the_grid_is_better(
    times_ms: SingleArray, n_stages: int, n_replicas: int, interval_ms: float
) -> None:
    limits = grid_limits(times_ms, interval_ms)
    least_ms = least_objective_ms(times_ms, limits, n_stages, n_replicas)
    found = grid_split(times_ms, n_stages, n_replicas, interval_ms)
    if found is None:
        assert math.isinf(least_ms)
        return
    assert found.objective_ms == pytest.approx(least_ms, rel=SINGLE)
    assert sum(found.sizes) == len(times_ms)
    times = times_of(found.sizes, times_ms)
    smallest = min(limit for limit in limits if limit >= max(times))
    own_ms = (n_stages - 1) * float(smallest) + sum(times) / n_replicas
    assert own_ms <= found.objective_ms * (1 + SINGLE)


@given(tables(), intervals)
def test_limits_are_times_that_lie_apart(times_ms: SingleArray, interval_ms: float) -> None:
    limits = grid_limits(times_ms, interval_ms)
    assert np.isin(limits, times_ms).all()
    assert (np.diff(limits) > interval_ms * (1 - SINGLE)).all()
    if interval_ms == 0:
        assert limits.tolist() == sorted({t for t in times_ms.flat if math.isfinite(t)})
