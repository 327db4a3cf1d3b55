import numpy as np
import pytest

from dynapipe_hpc.planner.batch.row_length import padded


@pytest.mark.parametrize(("tokens", "row"), [(1, 8), (8, 8), (9, 16), (2048, 2048)])
def test_rows_are_multiples_of_8(tokens: int, row: int) -> None:
    assert padded(tokens) == row
    assert padded(np.array([tokens])).tolist() == [row]
