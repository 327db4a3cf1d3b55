import pytest
import torch
from tests.oracles.plain_t5 import bucket

from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.models.sharding.shards import ONE_SHARD
from dynapipe_hpc.models.t5 import RelativeBias, buckets

SHAPE = T5Shape(
    n_layers=2,
    hidden_size=8,
    n_heads=3,
    head_size=4,
    ffn_size=16,
    vocab_size=9,
    max_tokens=64,
)
SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])


@SIDES
@pytest.mark.parametrize("sizes", [(32, 128), (10, 40), (4, 3)])
def test_near_distances_have_buckets_of_their_own_and_far_ones_share(
    side: str, sizes: tuple[int, int]
) -> None:
    found = buckets(torch.arange(-300, 301), *sizes, causal=side == "decoder")
    assert found.tolist() == [bucket(distance, side, *sizes) for distance in range(-300, 301)]


@SIDES
@pytest.mark.parametrize("sizes", [(32, 128), (10, 40)])
def test_every_pair_of_positions_gets_the_number_of_its_distance(
    side: str, sizes: tuple[int, int]
) -> None:
    shape = SHAPE.model_copy(update=dict(zip(("n_buckets", "max_distance"), sizes, strict=True)))
    bias = RelativeBias(shape, ONE_SHARD, causal=side == "decoder")
    torch.nn.init.normal_(bias.weight, generator=torch.manual_seed(1))
    numbers = bias(40)
    assert numbers.shape == (1, 3, 40, 40)
    for head, i, j in ((0, 0, 0), (1, 39, 3), (2, 20, 5), (0, 7, 7), (1, 3, 30), (2, 0, 39)):
        found = numbers[0, head, i, j].item()
        if side == "decoder" and j > i:
            assert found == -torch.inf
        else:
            assert found == bias.weight[bucket(j - i, side, *sizes), head].item()
