import numpy as np
import pytest

from dynapipe_hpc.planner.cost.table.import_csv import transient_of_stack

ROWS, LENGTHS = np.array([1, 2, 4, 8]), np.array([16, 32])
TOKENS = np.outer(ROWS, LENGTHS).astype(np.float64)


@pytest.mark.parametrize("per_token", [0.5, 3.0])
def test_the_depth_of_every_stack_is_recovered(per_token: float) -> None:
    depths = np.array([[3, 3], [3, 3], [3, 2], [2, 1]])
    stored = 2 * TOKENS
    found = transient_of_stack((ROWS, LENGTHS), stored, depths * stored + per_token * TOKENS)
    np.testing.assert_allclose(found, per_token * TOKENS)


def test_points_that_were_not_measured_stay_so() -> None:
    stored = np.where(TOKENS > 100, np.nan, TOKENS)
    found = transient_of_stack((ROWS, LENGTHS), stored, 4 * stored)
    np.testing.assert_array_equal(np.isnan(found), TOKENS > 100)


def test_a_peak_below_the_stored_bytes_leaves_what_smaller_ones_need() -> None:
    found = transient_of_stack((np.array([1, 2]),), np.array([10.0, 20.0]), np.array([40.0, 5.0]))
    assert found.tolist() == pytest.approx([10.0, 2 * 0.95 * 10.0])
