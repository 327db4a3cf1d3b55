import pytest
import torch

from dynapipe_hpc.models.sharding.split import Split


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
