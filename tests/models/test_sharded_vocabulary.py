"""A vocabulary over shards gives what a whole one does."""

import pytest
import torch
from tests.jobs.local_shards import on_shards
from torch import Tensor

from dynapipe_hpc.models.sharding.sharded_linear import TokenEmbedding, residual_stream
from dynapipe_hpc.models.sharding.shards import Shards

VOCABULARY = 12
TABLE = torch.randn(VOCABULARY, 5, generator=torch.manual_seed(1))
TOKENS = torch.randint(0, VOCABULARY, (3, 7), generator=torch.manual_seed(2))


@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_every_shard_has_the_vectors_of_all_ids(n_shards: int) -> None:
    def work(shards: Shards) -> tuple[Tensor, Tensor]:
        embedding = TokenEmbedding(VOCABULARY, 5, shards)
        embedding.weight.data.copy_(embedding.splits["weight"].part_of(TABLE))
        found = embedding(TOKENS, residual_stream(shards, *TOKENS.shape))
        found.sum().backward()
        assert embedding.weight.grad is not None
        return found.detach(), embedding.weight.grad

    of_shards = on_shards(n_shards, work)
    assert all(torch.equal(found, TABLE[TOKENS]) for found, _ in of_shards)
    counts = torch.cat([gradient for _, gradient in of_shards])[:, 0]
    assert counts.tolist() == torch.bincount(TOKENS.flatten(), minlength=VOCABULARY).tolist()
