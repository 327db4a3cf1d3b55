"""Tokens and pairs of micro-batches whose attention has a window."""

import numpy as np
import pytest

from dynapipe_hpc.architecture.part import Amount, Side
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.tokens import Tokens

N_ROWS, WINDOW = 3, 5
SEEN = Amount(per_pair=1, per_far_pair=-1)


def tokens_of(n_tokens: int, window: float = WINDOW) -> Tokens:
    shapes = Shapes.padded(*(np.array([n]) for n in (N_ROWS, n_tokens, 0)))
    return Tokens.from_shapes(Side.INPUTS, shapes, window)


@pytest.mark.parametrize("n_tokens", [1, 4, 5, 6, 20])
def test_pairs_that_a_window_leaves_are_counted_one_by_one(n_tokens: int) -> None:
    # Twice what is seen but for one diagonal, as n tokens without a window count n x n pairs.
    n_seen = sum(0 <= query - key < WINDOW for query in range(n_tokens) for key in range(n_tokens))
    expected = N_ROWS * (2 * n_seen - min(n_tokens, WINDOW))
    assert tokens_of(n_tokens).times(SEEN).tolist() == [expected]


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (0, 9), (3, 4), (3, 12), (5, 9), (40, 47)])
def test_pairs_of_slices_that_a_window_leaves_are_counted_one_by_one(begin: int, end: int) -> None:
    length = begin + end
    shapes = Shapes.padded(*(np.array([n]) for n in ((end - begin) / length, length, 0)))
    tokens = Tokens.from_shapes(Side.INPUTS, shapes, WINDOW)
    n_seen = sum(0 <= query - key < WINDOW for query in range(begin, end) for key in range(end))
    n_diagonal = min(end, WINDOW) - min(begin, WINDOW)
    assert tokens.times(SEEN).item() == pytest.approx(2 * n_seen - n_diagonal)
    assert begin == 0 or tokens.masked_square.tolist() == [0]  # no slice keeps its mask


def test_only_rows_longer_than_a_window_have_a_mask() -> None:
    masked = Amount(per_masked_square=1)
    found = [tokens_of(n).times(masked).item() for n in (WINDOW, WINDOW + 1)]
    assert found == [0, (WINDOW + 1) ** 2]


def test_inputs_of_packed_pairs_attend_within_rows_of_their_own() -> None:
    # Two rows of pairs whose 48 inputs count as three rows of 16.
    shapes = Shapes(*(np.array([n], np.float64) for n in (2, 24, 16, 3)))
    pairs = Tokens.from_shapes(Side.INPUTS, shapes).times(Amount(per_pair=1))
    assert pairs.tolist() == [3 * 16**2]


def test_a_target_attends_to_targets_of_its_row_and_to_inputs() -> None:
    shapes = Shapes.padded(*(np.array([n]) for n in (N_ROWS, 20, 8)))
    found = Tokens.from_shapes(Side.TARGETS, shapes)
    n_own = N_ROWS * 8
    assert [of.item() for of in found[:5]] == [n_own, N_ROWS * 20, n_own * 28, n_own * 8, 8**2]
