import pytest
import torch
from tests.oracles.plain_t5 import bucket

from dynapipe_hpc.models.t5 import buckets

SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])


@SIDES
@pytest.mark.parametrize("sizes", [(32, 128), (10, 40), (4, 3)])
def test_near_distances_have_buckets_of_their_own_and_far_ones_share(
    side: str, sizes: tuple[int, int]
) -> None:
    found = buckets(torch.arange(-300, 301), *sizes, causal=side == "decoder")
    assert found.tolist() == [bucket(distance, side, *sizes) for distance in range(-300, 301)]
