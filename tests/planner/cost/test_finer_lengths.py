import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray
from dynapipe_hpc.planner.cost.measured_axes import Axes
from dynapipe_hpc.planner.cost.stage_grids import with_finer_lengths

ROWS, LENGTHS = np.array([1, 4]), np.array([16, 32, 64, 120])
AXES: Axes = (ROWS, LENGTHS, LENGTHS)


def costs(axes: Axes) -> FloatArray:
    """A constant, linear maps of both sides, attention to either; weights take a third."""
    rows, inputs, targets = np.meshgrid(*(axis.astype(float) for axis in axes), indexing="ij")
    time_ms = 7 + rows * (3 * inputs + 2 * targets + inputs**2 + targets * (inputs + targets))
    table: FloatArray = time_ms[..., np.newaxis, np.newaxis] * [1, 3, 1, 0.25, 0, 10, 5, 5]
    return table


def test_what_grows_with_the_square_of_lengths_is_exact_at_the_new_ones() -> None:
    axes, points = with_finer_lengths(AXES, costs(AXES))
    assert axes[0].tolist() == [1, 4]
    assert axes[1].tolist() == axes[2].tolist() == [16, 24, 32, 48, 64, 92, 120]
    np.testing.assert_allclose(points, costs(axes), rtol=1e-12)


@given(arrays(np.float64, (2, 4, 4, 1, len(Cost)), elements=st.floats(0, 100)))
def test_noise_leaves_costs_growing_and_weights_a_part(noise: FloatArray) -> None:
    measured = np.cumsum(np.cumsum(np.cumsum(noise, 0), 1), 2)
    measured[..., Cost.BACKWARD_MS] += measured[..., Cost.WEIGHT_MS]
    axes, points = with_finer_lengths(AXES, measured)
    every = [np.searchsorted(finer, axis) for finer, axis in zip(axes, AXES, strict=True)]
    np.testing.assert_allclose(points[np.ix_(*every)], measured, rtol=1e-9)
    growing = np.delete(points, [Cost.WEIGHT_MS, Cost.SPLITTING_MS], axis=-1)
    assert all((np.diff(growing, axis=k) >= -1e-9).all() for k in range(3))
    assert (points[..., Cost.WEIGHT_MS] <= points[..., Cost.BACKWARD_MS] + 1e-9).all()


def test_what_splitting_takes_may_fall_with_length() -> None:
    measured = costs(AXES)
    measured[:, 0, :, :, Cost.SPLITTING_MS] = 1e6  # a disturbance
    axes, points = with_finer_lengths(AXES, measured)
    every = [np.searchsorted(finer, axis) for finer, axis in zip(axes, AXES, strict=True)]
    np.testing.assert_allclose(points[np.ix_(*every)], measured, rtol=1e-12)
