"""Shapes of the tensors between stages."""

import pytest

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows

PADDED = PaddedRows((0, 1, 2), 5, target_tokens=4)
PACKED = PackedRow((0, 1), 17, offsets=(0, 9, 17))


@pytest.mark.parametrize(
    ("boundary", "microbatch", "whole", "parts"),
    [
        (Boundary.ROWS, PADDED, (3, 5, 8), {2: (8, 8), 4: (4, 8), 15: (1, 8), 16: (1, 8)}),
        (Boundary.PAIR, PADDED, (3, 9, 8), {2: (8 + 6, 8), 4: (4 + 3, 8), 16: (1 + 1, 8)}),
        (Boundary.ROWS, PACKED, (1, 17, 8), {2: (9, 8), 4: (5, 8)}),
    ],
)
def test_a_shard_hands_over_its_own_tokens_of_each_side(
    boundary: Boundary,
    microbatch: MicroBatch,
    whole: tuple[int, ...],
    parts: dict[int, tuple[int, ...]],
) -> None:
    assert boundary.shape(microbatch, 8, n_parts=1) == whole
    assert {n: boundary.shape(microbatch, 8, n) for n in parts} == parts
