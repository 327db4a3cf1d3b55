"""A vocabulary over shards gives what a whole one does."""

import pytest
import torch
from tests.oracles.local_shards import on_shards
from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.models.sharded_vocabulary import TokenEmbedding, cross_entropies
from dynapipe_hpc.models.shards import Shards

VOCABULARY = 12
TABLE = torch.randn(VOCABULARY, 5, generator=torch.manual_seed(1))
TOKENS = torch.randint(0, VOCABULARY, (3, 7), generator=torch.manual_seed(2))
LOGITS = 30 * torch.randn(21, VOCABULARY, dtype=torch.float64, generator=torch.manual_seed(3))
WEIGHTS = torch.rand(21, dtype=torch.float64, generator=torch.manual_seed(4))


@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_every_shard_has_the_vectors_of_all_ids(n_shards: int) -> None:
    def work(shards: Shards) -> tuple[Tensor, Tensor]:
        embedding = TokenEmbedding(VOCABULARY, 5, shards)
        embedding.weight.data.copy_(embedding.splits["weight"].part_of(TABLE))
        found = embedding(TOKENS)
        found.sum().backward()
        assert embedding.weight.grad is not None
        return found.detach(), embedding.weight.grad

    of_shards = on_shards(n_shards, work)
    assert all(torch.equal(found, TABLE[TOKENS]) for found, _ in of_shards)
    counts = torch.cat([gradient for _, gradient in of_shards])[:, 0]
    assert counts.tolist() == torch.bincount(TOKENS.flatten(), minlength=VOCABULARY).tolist()


@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_cross_entropies_and_their_gradients_are_those_of_whole_logits(n_shards: int) -> None:
    whole = LOGITS.clone().requires_grad_()
    expected = functional.cross_entropy(whole, TOKENS.flatten(), reduction="none")
    expected.backward(WEIGHTS)  # type: ignore[no-untyped-call]

    def work(shards: Shards) -> tuple[Tensor, Tensor]:
        own = LOGITS.chunk(n_shards, dim=1)[shards.shard].clone().requires_grad_()
        found = cross_entropies(own, TOKENS.flatten(), shards)
        found.backward(WEIGHTS)  # type: ignore[no-untyped-call]
        assert own.grad is not None
        return found.detach(), own.grad

    of_shards = on_shards(n_shards, work)
    for found, _ in of_shards:
        torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(found, of_shards[0][0])
    gradients = torch.cat([gradient for _, gradient in of_shards], dim=1)
    torch.testing.assert_close(gradients, whole.grad, rtol=1e-12, atol=1e-14)


def test_logits_of_16_bits_are_compared_in_32() -> None:
    logits = LOGITS.bfloat16()
    expected = functional.cross_entropy(logits.float(), TOKENS.flatten(), reduction="none")

    def work(shards: Shards) -> Tensor:
        return cross_entropies(logits.chunk(2, dim=1)[shards.shard], TOKENS.flatten(), shards)

    for found in on_shards(2, work):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
