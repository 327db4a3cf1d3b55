import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.every_split import (
    every_cut,
    fill_and_work_ms,
    least_objective_by_limits_ms,
    least_objective_ms,
    objective_ms,
    pareto_front,
)

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import FloatArray

Problem = tuple[list[int], FloatArray, FloatArray]

TIMES_MS = st.integers(1, 12).map(float) | st.floats(0.1, 100) | st.just(math.inf)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any tables: not even more samples need to cost more, and any entry may be forbidden."""
    n_lengths, max_samples = draw(st.integers(1, 4)), draw(st.integers(1, 10))
    entries = st.lists(TIMES_MS, min_size=n_lengths * max_samples, max_size=n_lengths * max_samples)
    work_ms, fill_ms = (np.array(draw(entries)).reshape(n_lengths, max_samples) for _ in range(2))
    lengths = draw(st.lists(st.integers(0, n_lengths - 1), min_size=1, max_size=9))
    return lengths, work_ms, fill_ms


def rows(lengths: list[int]) -> npt.NDArray[np.int32]:
    return np.array(lengths, dtype=np.int32)


def tables(
    work_ms: FloatArray, fill_ms: FloatArray
) -> tuple[npt.NDArray[np.int64], FloatArray, FloatArray]:
    """Row after row, without what is forbidden at the end of a row, so of unlike widths."""
    widths = [np.flatnonzero(np.isfinite(row)).max(initial=-1) + 1 for row in work_ms]
    work, fill = (
        np.concatenate([row[:width] for row, width in zip(table, widths, strict=True)])
        for table in (work_ms, fill_ms)
    )
    return np.cumsum([0, *widths]), work, fill


@given(problems(), st.integers(1, 4))
def test_kernel_agrees_with_trying_every_split(problem: Problem, n_replicas: int) -> None:
    lengths, work_ms, fill_ms = problem
    found = _kernels.split_samples(rows(lengths), *tables(work_ms, fill_ms), n_replicas)
    sizes, found_ms = found.sizes, found.objective_ms
    assert found_ms == pytest.approx(least_objective_ms(lengths, work_ms, fill_ms, n_replicas))
    if math.isfinite(found_ms):
        assert sum(sizes) == len(lengths)
        assert objective_ms(sizes, lengths, work_ms, fill_ms, n_replicas) == pytest.approx(found_ms)
    else:
        assert sizes == []


@given(problems())
def test_the_front_agrees_with_trying_every_split(problem: Problem) -> None:
    lengths, work_ms, fill_ms = problem
    front = _kernels.split_front(rows(lengths), *tables(work_ms, fill_ms))
    found = [(point.fill_ms, point.work_ms) for point in front]
    assert found == pareto_front(lengths, work_ms, fill_ms)
    for point in front:
        of_sizes = fill_and_work_ms(point.sizes, lengths, work_ms, fill_ms)
        assert of_sizes == (point.fill_ms, point.work_ms)


@given(problems(), st.integers(1, 4))
def test_the_best_split_is_on_the_front(problem: Problem, n_replicas: int) -> None:
    lengths, work_ms, fill_ms = problem
    front = _kernels.split_front(rows(lengths), *tables(work_ms, fill_ms))
    found = _kernels.split_samples(rows(lengths), *tables(work_ms, fill_ms), n_replicas)
    objectives_ms = (point.fill_ms + point.work_ms / n_replicas for point in front)
    assert found.objective_ms == min(objectives_ms, default=math.inf)


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=9), st.integers(1, 5))
def test_equal_stages_give_the_iteration_time_of_the_paper(
    times_ms: list[float], n_stages: int
) -> None:
    def iteration_ms(sizes: tuple[int, ...]) -> float:
        times = [times_ms[size - 1] for size in sizes]
        return (n_stages - 1) * max(times) + sum(times)

    work_ms = np.array([times_ms])
    lengths = rows([0] * len(times_ms))
    found = _kernels.split_samples(lengths, *tables(work_ms, (n_stages - 1) * work_ms), 1)
    assert found.objective_ms == pytest.approx(min(map(iteration_ms, every_cut(len(times_ms)))))


def test_a_pipeline_prefers_small_micro_batches_where_one_stage_prefers_a_large_one() -> None:
    work_ms = np.array([[4.0, 5.0, 6.0, 7.0]])
    lengths = rows([0] * 4)
    one_stage = _kernels.split_samples(lengths, *tables(work_ms, 0 * work_ms), 1)
    assert (one_stage.sizes, one_stage.objective_ms) == ([4], 7.0)
    pipeline = _kernels.split_samples(lengths, *tables(work_ms, 3 * work_ms), 1)
    assert (pipeline.sizes, pipeline.objective_ms) == ([2, 2], 25.0)


@pytest.mark.parametrize("seed", range(20))
def test_long_lists_agree_with_trying_every_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    growth_ms = rng.uniform(0.2, 1.0, (5, 15)) * rng.uniform(0.5, 4.0, (5, 1))
    work_ms = rng.uniform(0.0, 3.0) + np.cumsum(growth_ms, axis=1)
    fill_ms = rng.uniform(0.5, 1.5) * work_ms ** rng.uniform(0.8, 1.2)
    lengths = np.sort(rng.integers(0, 5, 80)).tolist()
    found = _kernels.split_samples(rows(lengths), *tables(work_ms, fill_ms), 2)
    least_ms = least_objective_by_limits_ms(lengths, work_ms, fill_ms, 2)
    assert found.objective_ms == pytest.approx(least_ms)
    assert found.n_solves < len(np.unique(fill_ms)) / 2


def test_types_layouts_and_shapes_are_checked() -> None:
    begin, table = np.array([0, 3, 6]), np.ones(6)
    split = _kernels.split_samples
    with pytest.raises(TypeError, match="incompatible function arguments"):
        split(np.array([0, 1]), begin, table, table, 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        split(rows([0]), begin, table[::2], table[::2], 1)
    with pytest.raises(ValueError, match=r"shape \(n_samples,\), n_samples >= 1, got \(0,\)"):
        split(rows([]), begin, table, table, 1)
    for wrong_begin in ([0], [0, 3, 5], [0, 4, 3, 6], [-1, 6]):
        with pytest.raises(ValueError, match="begin must ascend from 0 to the 6 entries"):
            split(rows([0]), np.array(wrong_begin), table, table, 1)
    with pytest.raises(ValueError, match=r"work_ms must have shape \(6,\), got \(2, 3\)"):
        split(rows([0]), begin, table.reshape(2, 3), table, 1)
    with pytest.raises(ValueError, match=r"fill_ms must have shape \(6,\), got \(3,\)"):
        split(rows([0]), begin, table, table[:3], 1)
    with pytest.raises(ValueError, match="rows 0 to 1, got 0 to 2"):
        split(rows([0, 2]), begin, table, table, 1)
    with pytest.raises(ValueError, match="rows 0 to 1, got -1 to 0"):
        split(rows([0, -1]), begin, table, table, 1)
    with pytest.raises(ValueError, match="n_replicas must be >= 1, got 0"):
        split(rows([0]), begin, table, table, 0)
    for wrong in (np.nan, -1.0):
        with pytest.raises(ValueError, match="work_ms must hold no NaN and nothing negative"):
            split(rows([0]), begin, np.full(6, wrong), table, 1)
        with pytest.raises(ValueError, match="fill_ms must hold no NaN and nothing negative"):
            _kernels.split_front(rows([0]), begin, table, np.full(6, wrong))
