import pytest
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.planner.batch.config import DynamicConfig


def picture(grid: ProfileGrid) -> list[str]:
    """Rows downwards, tokens per row to the right."""
    measured = {(m.n_rows, m.row_tokens) for m in grid.microbatches()}
    return [
        " ".join("x" if (rows, tokens) in measured else "." for tokens in grid.row_tokens)
        for rows in grid.rows
    ]


def test_the_grid_is_of_powers_of_two_within_the_largest_micro_batch() -> None:
    grid = ProfileGrid.from_config(tiny_experiment(), max_tokens=64)
    assert (grid.rows, grid.row_tokens) == ((1, 2, 4), (16, 32))
    assert picture(grid) == ["x x", "x x", "x ."]


@pytest.mark.parametrize(
    ("max_tokens", "row_tokens"), [(30, (16, 32)), (40, (16, 32, 40)), (5, (8,))]
)
def test_the_longest_row_is_the_longest_that_a_run_pads_to(
    max_tokens: int, row_tokens: tuple[int, ...]
) -> None:
    config = with_keys(tiny_experiment(), data={"max_tokens": max_tokens})
    assert ProfileGrid.from_config(config).row_tokens == row_tokens


def test_the_longest_row_is_a_multiple_that_plans_ask_for() -> None:
    config = with_keys(tiny_experiment(), planner={"batch": DynamicConfig(token_multiple=24)})
    grid = ProfileGrid.from_config(config)
    assert grid.row_tokens == (16, 32, 48)  # data.max_tokens is 32


def test_packed_rows_that_are_filled_up_by_much_lie_between_measured_ones() -> None:
    batch = DynamicConfig(layouts=("packed",), token_multiple=256)
    grid = ProfileGrid.from_config(with_keys(tiny_experiment(), planner={"batch": batch}))
    assert (grid.row_tokens, grid.max_tokens) == ((16, 32, 64, 128), 1024)
    assert grid.rows[-1] * grid.row_tokens[0] == 1024


def test_packed_rows_hold_the_same_samples_end_to_end() -> None:
    grid = ProfileGrid.from_config(tiny_experiment(), max_tokens=64)
    for rows in grid.microbatches():
        row = grid.end_to_end(rows)
        assert row.layout is Layout.PACKED
        assert row.rows == (rows.sample_ids,)
        assert row.offsets == tuple(i * rows.row_tokens for i in range(rows.n_rows + 1))
        assert row.row_tokens == row.offsets[-1]
