"""Preference pairs in packed rows: laid out as a prompt with two answers, and planned as such."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Branch, Layout, PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_row import packed_microbatch
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.cost.cost_model import KnownRows

SIDES = st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))


def pairs_of(sides: Sequence[tuple[int, int, int]]) -> list[Sample]:
    return [Sample(i, p, c, rejected_tokens=r) for i, (p, c, r) in enumerate(sides)]


def seen_pairs(prompt: int, chosen: int, rejected: int) -> int:
    """Pairs of tokens one of which attends to the other, in either order, counted one by one."""
    answers = [0] * prompt + [1] * chosen + [2] * rejected
    return sum({a, b} != {1, 2} for a in answers for b in answers)


def test_a_row_holds_every_prompt_once() -> None:
    pairs = pairs_of([(3, 2, 4), (0, 1, 5)])
    assert packed_microbatch(pairs, Recompute.FULL) == PackedRow(
        (0, 1), 16, (0, 9, 15), Recompute.FULL, branches=(Branch(5, 3), Branch(10, 0))
    )


@given(st.lists(SIDES, min_size=1, max_size=5))
def test_a_row_costs_its_tokens_and_the_pairs_that_see_each_other(
    sides: list[tuple[int, int, int]],
) -> None:
    row = packed_microbatch(pairs_of(sides), Recompute.NONE)
    n_rows, row_tokens, _, _ = (float(of[0]) for of in shapes_of([row], KnownRows()))
    expected = sum(seen_pairs(*each) for each in sides)
    assert n_rows * row_tokens == pytest.approx(row.row_tokens)
    # Fill counts as tokens of rows as long as the others.
    n_wanted = row.row_tokens**2 / expected
    assert n_rows == pytest.approx(max(1.0, min(n_wanted, 2 * len(sides))))


@given(st.lists(SIDES, min_size=2, max_size=5))
def test_windows_cost_what_their_rows_do(sides: list[tuple[int, int, int]]) -> None:
    pairs = pairs_of(sides)
    cluster = Cluster(device_memory_bytes=2**30)
    table = price_windows(pairs, linear_cost(), cluster, [Layout.PACKED])
    windows = [[0, len(pairs), 0], [1, len(pairs) - 1, 0]]
    found = table.shapes.take(table.cells_of(np.array(windows, np.uint32)).astype(np.int64))
    rows = [packed_microbatch(each, Recompute.NONE) for each in (pairs, pairs[1:])]
    np.testing.assert_array_equal(np.stack(found), np.stack(shapes_of(rows, KnownRows())))
