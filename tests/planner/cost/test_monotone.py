import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.monotone import make_monotone

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
def test_nothing_decreases_along_any_axis(grid: FloatArray) -> None:
    finite = np.minimum(make_monotone(grid).grid, 1e9)
    for axis in range(grid.ndim):
        assert (np.diff(finite, axis=axis) >= 0).all()


@given(GRIDS)
def test_repaired_values_stay_among_the_measured_ones(grid: FloatArray) -> None:
    repaired = make_monotone(grid).grid
    feasible = np.isfinite(repaired)
    if feasible.any():
        assert repaired[feasible].min() >= np.nanmin(grid)
        assert repaired[feasible].max() <= np.nanmax(grid)
