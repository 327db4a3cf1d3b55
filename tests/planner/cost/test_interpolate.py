import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.planner.cost.interpolate import Interpolator

ROWS, ROW_TOKENS = np.array([1, 2, 8]), np.array([4, 10, 16])


def on_a_line(low: float, high: float, share: float) -> float:
    """Between two values; an infinite one counts unless its share is zero."""
    return low if share == 0 else low * (1 - share) + high * share


def by_hand(values: np.ndarray, n_rows: int, row_tokens: int) -> float:
    """One point at a time, straight from the definition."""
    tokens = max(row_tokens, ROW_TOKENS[0])
    if n_rows > ROWS[-1] or tokens > ROW_TOKENS[-1]:
        return float("inf")
    at_lengths = []
    for row in range(len(ROWS)):
        left = max(i for i in range(3) if ROW_TOKENS[i] <= tokens)
        right = min(left + 1, 2)
        share = (tokens - ROW_TOKENS[left]) / max(ROW_TOKENS[right] - ROW_TOKENS[left], 1)
        at_lengths.append(on_a_line(values[row, left], values[row, right], share))
    low = max(i for i in range(3) if ROWS[i] <= n_rows)
    high = min(low + 1, 2)
    share = (n_rows - ROWS[low]) / max(ROWS[high] - ROWS[low], 1)
    return on_a_line(at_lengths[low], at_lengths[high], share)


@given(
    st.lists(st.floats(0, 100), min_size=9, max_size=9),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40)), min_size=1, max_size=20),
)
def test_many_points_at_once_equal_the_definition(
    steps: list[float], n_feasible: int, points: list[tuple[int, int]]
) -> None:
    growing = np.cumsum(np.cumsum(np.reshape(steps, (3, 3)), axis=0), axis=1)
    growing[np.add.outer(range(3), range(3)) * 2 >= n_feasible] = np.inf
    n_rows, row_tokens = np.array(points).T
    found = Interpolator(ROWS, ROW_TOKENS, growing[np.newaxis, :, :, np.newaxis])(
        n_rows, row_tokens
    )
    expected = [by_hand(growing, *point) for point in points]
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-12, atol=1e-9)
