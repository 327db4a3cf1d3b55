"""Maps, vocabulary and residual stream over shards compute what they do on one."""

import pytest
import torch
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor

from dynapipe_hpc.models.sharding.sharded_linear import TokenEmbedding, residual_stream
from dynapipe_hpc.models.sharding.shards import Shards

SIZES = [(1, 1), (2, 3), (3, 5), (4, 4)]  # fewer tokens than shards, and numbers of any remainder


def drawn(*size: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)  # threads share the default one
    return torch.randn(size, dtype=torch.float64, generator=stream)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n_shards", [2, 3, 4])
def test_own_tokens_are_no_copies(size: tuple[int, int], n_shards: int) -> None:
    def work(shards: Shards) -> tuple[bool, bool]:
        values = drawn(*size, 4, seed=1)
        hidden = of_stream(residual_stream(shards, *size), values)
        is_view = hidden.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        return is_view, (shards.shard + 1) * len(hidden) <= values[..., 0].numel()

    for is_view, is_full in on_shards(n_shards, work, sequence_parallel=True):
        assert is_view == is_full


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
