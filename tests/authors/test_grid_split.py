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
