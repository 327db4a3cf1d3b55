"""The authors' split against trying every cut with every limit on the grid."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce.authors.grid_split import SingleArray, grid_limits, grid_split
from tests.oracles.every_split import every_cut

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


def test_many_limits_are_tried_in_parts() -> None:
    random = np.random.default_rng(0)
    steps = random.uniform(1, 2, size=(40, 40)).astype(np.float32)
    times_ms = np.cumsum(steps, axis=1)
    times_ms[np.add.outer(np.arange(40), np.arange(40)) >= 40] = np.inf
    exact = grid_split(times_ms, 4, 1, 0)
    coarse = grid_split(times_ms, 4, 1, 5)
    assert exact is not None
    assert coarse is not None
    assert exact.objective_ms < coarse.objective_ms < 1.5 * exact.objective_ms


def test_the_limit_counts_and_not_the_longest_time_within_it() -> None:
    # Limits are 1, and 7 but not 6: two samples together take 6 ms and count as 3 * 7 + 6.
    times_ms = np.array([[7, 6], [1, np.inf]], np.float32)
    assert grid_limits(np.array([[1, 6, 7]], np.float32), 5).tolist() == [1, 7]
    found = grid_split(times_ms, n_stages=4, n_replicas=1, interval_ms=5)
    assert found == ([2], 3 * 7 + 6)


def test_a_grid_may_leave_out_all_limits_that_are_large_enough() -> None:
    times_ms = np.array([[4, 4.25], [1, np.inf]], np.float32)
    assert grid_split(times_ms, 2, 1, interval_ms=5) is None
    assert grid_split(times_ms, 2, 1, interval_ms=0) == ([2], 8.5)


def test_of_equal_cuts_the_last_micro_batch_is_the_longest() -> None:
    times_ms = np.array([[1, 2, np.inf], [2, 2, np.inf], [1, np.inf, np.inf]], np.float32)
    assert grid_split(times_ms, n_stages=1, n_replicas=1, interval_ms=0) == ([1, 2], 3)
