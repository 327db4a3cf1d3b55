from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes
from dynapipe_hpc.planner.cost.interpolate import Interpolator, make_monotone
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes
from dynapipe_hpc.planner.cost.stage_grids import most_tokens, with_corners, with_finer_lengths

AXES = (np.array([1, 2, 8]), np.array([4, 10, 16]), np.array([8, 12]))
N_KINDS = 2
KIND_OF_STAGE = np.array([1, 0, 0], np.int32)
BOUNDARY = np.array([[2.0, 4.0], [2.0, 0.0]])

Size = tuple[float, float, float]

rows, lengths = (st.one_of(st.integers(1, largest), st.floats(1, largest)) for largest in (10, 20))
sizes = st.tuples(rows, lengths, st.integers(0, 14))


def sides(axis: np.ndarray, value: float) -> list[tuple[int, float]]:
    """The points beside a value and their weights; none if it is beyond the last."""
    value = max(value, axis[0])
    if value > axis[-1]:
        return []
    left = max(i for i, point in enumerate(axis) if point <= value)
    if axis[left] == value:
        return [(left, 1.0)]
    share = (value - axis[left]) / (axis[left + 1] - axis[left])
    return [(left, 1 - share), (left + 1, share)]


def by_hand(points: FloatArray, size: Size) -> FloatArray:
    """One point at a time, straight from the definition; shape (n_kinds, len(Cost))."""
    corners = list(product(*(sides(axis, value) for axis, value in zip(AXES, size, strict=True))))
    if not corners:
        return np.full(points.shape[3:], np.inf)
    parts = [np.prod([w for _, w in c]) * points[tuple(i for i, _ in c)] for c in corners]
    total: FloatArray = np.sum(parts, axis=0)
    return total


def random_points(seed: int, n_infeasible: int) -> FloatArray:
    random = np.random.default_rng(seed)
    points = random.uniform(0, 100, (*map(len, AXES), N_KINDS, len(Cost)))
    for _ in range(n_infeasible):
        points[tuple(random.integers(0, points.shape[:4]))] = np.inf
    return points


def interpolator(points: FloatArray) -> Interpolator:
    return Interpolator(AXES, points, np.full(N_KINDS, 1e9), KIND_OF_STAGE, BOUNDARY)


@given(st.integers(0, 99), st.integers(0, 9), st.lists(sizes, min_size=1, max_size=20))
def test_many_points_at_once_equal_the_definition(
    seed: int, n_infeasible: int, drawn: list[Size]
) -> None:
    points = random_points(seed, n_infeasible)
    found = interpolator(points)(Shapes.padded(*np.array(drawn).T)).table
    for size, of_stages in zip(drawn, found, strict=True):
        expected = by_hand(points, size)
        expected[:, Cost.BOUNDARY_BYTES] = size[0] * (BOUNDARY @ size[1:])
        expected = expected[KIND_OF_STAGE]
        np.testing.assert_allclose(of_stages, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": (AXES[0][::-1].copy(), *AXES[1:])}, "rows must be ascending"),
        ({"points": np.zeros((3, 3, 3, 2, 8))}, r"points must have shape \(3, 3, 2, 2, 8\)"),
        ({"boundary_bytes_per_token": np.zeros((1, 2))}, r"must have shape \(2, 2\)"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(interpolator(random_points(0, 0)), **change)(
            Shapes.padded(*np.ones((3, 1), np.int64))
        )


def test_a_micro_batch_of_more_tokens_than_the_largest_of_a_kind_is_infeasible() -> None:
    points = random_points(0, 0)
    find = replace(interpolator(points), most_tokens=np.array([2 * (4 + 8), 1e9]))
    sizes = np.array([[2, 4, 8], [2, 4, 8.001], [24 / 12.3, 4, 8.3], [1, 12, 12]], np.float64)
    found = find(Shapes.padded(*sizes.T)).of_kinds
    finite = np.isfinite(found[..., Cost.FORWARD_MS])
    assert finite.tolist() == [[True, True], [False, True], [True, True], [True, True]]


ROWS, LENGTHS = 2 ** np.arange(7), 16 * 2 ** np.arange(6)
CORNERS_AXES: Axes = (ROWS, LENGTHS, NO_TARGET)
LARGEST = 512


def measured(axes: Axes, of_row: tuple[float, float, float], most: int = LARGEST) -> FloatArray:
    """Costs of rows of inputs and targets, infinite beyond the largest micro-batch."""
    per_token, per_pair, per_target = of_row
    points = np.full((*map(len, axes), 1, len(Cost)), np.inf)
    for (i, n), (j, inputs), (k, targets) in product(*(enumerate(axis.tolist()) for axis in axes)):
        if n * (inputs + targets) <= most:
            cost = n * (per_token * inputs + per_pair * inputs**2) * (1 + per_target * targets)
            points[i, j, k] = cost
    return points


@given(st.tuples(st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1)))
def test_products_of_rows_and_lengths_are_exact(of_row: tuple[float, float, float]) -> None:
    points = with_corners(CORNERS_AXES, measured(CORNERS_AXES, of_row))
    everywhere = measured(CORNERS_AXES, of_row, most=10**9)
    for i, j in product(range(7), range(6)):
        tokens = ROWS[i] * LENGTHS[j]
        if tokens <= LARGEST or (tokens == 2 * LARGEST and i > 0 < j):
            np.testing.assert_allclose(points[i, j], everywhere[i, j], rtol=1e-12)
        else:
            assert np.isinf(points[i, j]).all()


def test_the_corner_beyond_on_all_sides_follows_from_the_others() -> None:
    axes: Axes = (ROWS[:2], LENGTHS[:2], LENGTHS[:2])
    of_row = (2.0, 0.0, 0.5)
    points = with_corners(axes, measured(axes, of_row, most=2 * 32))
    np.testing.assert_allclose(points, measured(axes, of_row, most=10**9), rtol=1e-12)


def test_what_ran_out_of_memory_remains_infeasible() -> None:
    points = measured(CORNERS_AXES, (1.0, 0.0, 0.0))
    points[3, 2] = np.inf  # 8 x 64 tokens, as many as the largest have
    added = with_corners(CORNERS_AXES, points)
    assert np.isinf(added[3, 2]).all()
    assert np.isinf(added[3, 3]).all()
    assert np.isinf(added[4, 2]).all()
    assert np.isfinite(added[2, 4]).all()


def test_the_largest_micro_batch_counts_both_sides_of_every_kind_of_stage() -> None:
    axes: Axes = (ROWS, LENGTHS[:2], LENGTHS[:2])
    points = np.concatenate(
        [measured(axes, (1.0, 0.0, 0.0), most) for most in (200, 10**9, 0)], axis=3
    )
    assert most_tokens(axes, points).tolist() == [4 * (32 + 16), 64 * (32 + 32), 0]


@pytest.mark.parametrize("per_pair", [0.0, 0.02])
def test_every_size_up_to_the_largest_is_known_and_no_other(per_pair: float) -> None:
    points = measured(CORNERS_AXES, (1.0, per_pair, 0.0))
    axes, finer = with_finer_lengths(CORNERS_AXES, points)
    limits = most_tokens(CORNERS_AXES, points)
    find = Interpolator(axes, finer, limits, np.zeros(1, np.int32), np.zeros((1, 2)))
    sizes = [(n, t) for n in range(1, 33) for t in range(16, 513, 8)]
    rows, lengths = np.array(sizes, np.float64).T
    found = find(Shapes.padded(rows, lengths, np.zeros_like(rows))).table[:, 0, Cost.FORWARD_MS]
    for (n, t), ms in zip(sizes, found, strict=True):
        if n * t <= LARGEST:
            assert ms == pytest.approx(n * (t + per_pair * t**2), rel=0.04)
        else:
            assert ms == np.inf


FINER_LENGTHS_ROWS, FINER_LENGTHS_LENGTHS = np.array([1, 4]), np.array([16, 32, 64, 120])
FINER_LENGTHS_AXES: Axes = (FINER_LENGTHS_ROWS, FINER_LENGTHS_LENGTHS, FINER_LENGTHS_LENGTHS)


def costs(axes: Axes) -> FloatArray:
    """A constant, linear maps of both sides, attention to either; weights take a third."""
    rows, inputs, targets = np.meshgrid(*(axis.astype(float) for axis in axes), indexing="ij")
    time_ms = 7 + rows * (3 * inputs + 2 * targets + inputs**2 + targets * (inputs + targets))
    table: FloatArray = time_ms[..., np.newaxis, np.newaxis] * [1, 3, 1, 0.25, 0, 10, 5, 5]
    return table


def test_what_grows_with_the_square_of_lengths_is_exact_at_the_new_ones() -> None:
    axes, points = with_finer_lengths(FINER_LENGTHS_AXES, costs(FINER_LENGTHS_AXES))
    assert axes[0].tolist() == [1, 4]
    assert axes[1].tolist() == axes[2].tolist() == [16, 24, 32, 48, 64, 92, 120]
    np.testing.assert_allclose(points, costs(axes), rtol=1e-12)


def checked_points(measured: FloatArray, rtol: float) -> FloatArray:
    """Points with finer lengths, among which are the measured ones."""
    axes, points = with_finer_lengths(FINER_LENGTHS_AXES, measured)
    pairs = zip(axes, FINER_LENGTHS_AXES, strict=True)
    every = [np.searchsorted(finer, axis) for finer, axis in pairs]
    np.testing.assert_allclose(points[np.ix_(*every)], measured, rtol=rtol)
    return points


@given(arrays(np.float64, (2, 4, 4, 1, len(Cost)), elements=st.floats(0, 100)))
def test_noise_leaves_costs_growing_and_weights_a_part(noise: FloatArray) -> None:
    measured = np.cumsum(np.cumsum(np.cumsum(noise, 0), 1), 2)
    measured[..., Cost.BACKWARD_MS] += measured[..., Cost.WEIGHT_MS]
    points = checked_points(measured, 1e-9)
    growing = np.delete(points, [Cost.WEIGHT_MS, Cost.SPLITTING_MS], axis=-1)
    assert all((np.diff(growing, axis=k) >= -1e-9).all() for k in range(3))
    assert (points[..., Cost.WEIGHT_MS] <= points[..., Cost.BACKWARD_MS] + 1e-9).all()


def test_what_splitting_takes_may_fall_with_length() -> None:
    measured = costs(FINER_LENGTHS_AXES)
    measured[:, 0, :, :, Cost.SPLITTING_MS] = 1e6  # a disturbance
    points = checked_points(measured, 1e-12)
    assert (np.diff(points[..., Cost.SPLITTING_MS], axis=1) < 0).any()


GRIDS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=3, max_side=5),
    elements=st.one_of(st.floats(0, 100), st.just(np.nan)),
)


def test_beyond_an_infeasible_point_all_is_infeasible() -> None:
    repaired = make_monotone(np.array([[1.0, 2.0, 3.0], [2.0, np.nan, 4.0]]))
    assert np.isinf(repaired.grid).tolist() == [[False, False, False], [False, True, True]]
    assert repaired.n_changed == 0


@given(GRIDS)
def test_nothing_decreases_along_any_axis_or_leaves_what_was_measured(grid: FloatArray) -> None:
    repaired = make_monotone(grid).grid
    for axis in range(grid.ndim):
        assert (np.diff(np.minimum(repaired, 1e9), axis=axis) >= 0).all()
    feasible = repaired[np.isfinite(repaired)]
    if feasible.size:
        assert np.nanmin(grid) <= feasible.min() <= feasible.max() <= np.nanmax(grid)
