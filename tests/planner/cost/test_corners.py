from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.planner.cost.corners import most_tokens, with_corners
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes
from dynapipe_hpc.planner.cost.interpolate import Interpolator
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes
from dynapipe_hpc.planner.cost.stage_grids import with_finer_lengths

ROWS, LENGTHS = 2 ** np.arange(7), 16 * 2 ** np.arange(6)
AXES: Axes = (ROWS, LENGTHS, NO_TARGET)
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
    points = with_corners(AXES, measured(AXES, of_row))
    everywhere = measured(AXES, of_row, most=10**9)
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
    points = measured(AXES, (1.0, 0.0, 0.0))
    points[3, 2] = np.inf  # 8 x 64 tokens, as many as the largest have
    added = with_corners(AXES, points)
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
    points = measured(AXES, (1.0, per_pair, 0.0))
    axes, finer = with_finer_lengths(AXES, points)
    limits = most_tokens(AXES, points)
    find = Interpolator(axes, finer, limits, np.zeros(1, np.int32), np.zeros((1, 2)))
    sizes = [(n, t) for n in range(1, 33) for t in range(16, 513, 8)]
    rows, lengths = np.array(sizes, np.float64).T
    found = find(Shapes.padded(rows, lengths, np.zeros_like(rows))).table[:, 0, Cost.FORWARD_MS]
    for (n, t), ms in zip(sizes, found, strict=True):
        if n * t <= LARGEST:
            assert ms == pytest.approx(n * (t + per_pair * t**2), rel=0.04)
        else:
            assert ms == np.inf
