import numpy as np
import pytest

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.cost_model import Cost, KnownRows


def test_the_kernels_number_the_columns_of_costs_alike() -> None:
    kernels = {cost.name: cost.value for cost in _kernels.Cost}
    assert kernels == {cost.name: cost.value for cost in Cost}


def packed(lengths: list[int], row_tokens: int) -> MicroBatch:
    offsets = tuple(map(int, np.cumsum([0, *lengths])))
    return PackedRow(tuple(range(len(lengths))), row_tokens, offsets)


@pytest.mark.parametrize(
    ("lengths", "row_tokens", "known", "expected"),
    [
        ([9], 16, KnownRows(), (1, 16)),
        ([5, 5], 16, KnownRows(), (2, 8)),
        ([24] * 5, 120, KnownRows((1, 2), 2), (2, 60)),
        ([8] * 8, 64, KnownRows(least_tokens=32), (2, 32)),
        ([8], 8, KnownRows(least_tokens=32), (1, 8)),
        ([128], 256, KnownRows(), (2, 128)),
        ([100], 300, KnownRows(), (2, 150)),
        ([100], 300, KnownRows(longest_tokens=200), (1.5, 200)),
        ([100], 300, KnownRows(longest_tokens=300), (1, 300)),
        ([100], 300, KnownRows((1,), 1, longest_tokens=200), (1, 300)),
    ],
)
def test_rows_that_are_too_many_or_too_short_are_fewer_and_longer(
    lengths: list[int], row_tokens: int, known: KnownRows, expected: tuple[float, float]
) -> None:
    (n_rows,), (tokens,), (targets,), _ = shapes_of([packed(lengths, row_tokens)], known)
    assert (n_rows, tokens, targets) == (*expected, 0)


def test_padded_and_packed_micro_batches_keep_their_order() -> None:
    in_rows = PaddedRows((0, 1, 2), 24)
    n_rows, row_tokens, *_ = shapes_of([packed([16], 16), in_rows, packed([8], 8)], KnownRows())
    assert n_rows.tolist() == [1, 3, 1]
    assert row_tokens.tolist() == [16, 24, 8]
