import pytest
import torch
from torch import nn

from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import OneShard
from dynapipe_hpc.models.sharding.split import WHOLE, Split, splits_of


@pytest.mark.parametrize("n_blocks", [1, 3])
@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_shards_cover_a_weight_once(dimension: int, n_blocks: int, n_shards: int) -> None:
    whole = torch.arange(12 * 24).view(12, 24)
    splits = [Split(dimension, n_blocks, shard, n_shards) for shard in range(n_shards)]
    parts = [split.part_of(whole) for split in splits]
    assert sorted(torch.cat([part.flatten() for part in parts]).tolist()) == list(range(12 * 24))
    for split, part in zip(splits, parts, strict=True):
        assert split.whole_shape(part.shape) == whole.shape


def test_a_shard_has_its_part_of_every_block() -> None:
    whole = torch.arange(12)  # queries 0 to 3, keys 4 to 7, values 8 to 11
    assert Split(0, 3, 1, 2).part_of(whole).tolist() == [2, 3, 6, 7, 10, 11]


def test_the_last_shards_are_filled_up_with_zeros() -> None:
    splits = [Split(0, 1, shard, 3, whole_size=4) for shard in range(3)]
    whole = torch.tensor([1, 2, 3, 4])
    assert [s.part_of(whole).tolist() for s in splits] == [[1, 2], [3, 4], [0, 0]]
    assert splits[0].whole_shape(torch.Size([2])) == whole.shape


def test_what_is_not_cut_is_whole() -> None:
    weight = torch.rand(3, 4)
    assert torch.equal(WHOLE.part_of(weight), weight)
    assert torch.equal(WHOLE.part_of(weight[0]), weight[0])


def test_a_module_says_which_of_its_weights_are_cut() -> None:
    shards = OneShard()
    module = nn.ModuleDict(
        {
            "norm": nn.LayerNorm(4),
            "inner": ColumnLinear(4, 8, shards),
            "output": RowLinear(8, 4, shards),
        }
    )
    assert splits_of(module).keys() == {"inner.weight", "inner.bias", "output.weight"}
    assert splits_of(module["inner"]).keys() == {"weight", "bias"}
