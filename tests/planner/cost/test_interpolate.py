from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes
from dynapipe_hpc.planner.cost.interpolate import Interpolator

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
