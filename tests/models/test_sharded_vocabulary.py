"""A vocabulary over shards gives what a whole one does."""

import pytest
import torch
from tests.jobs.local_shards import on_shards
from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.models.sharded_vocabulary import (
    TokenEmbedding,
    cross_entropies,
    without_padding,
)
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


@pytest.mark.parametrize("n_shards", [2, 3, 5])
def test_a_vocabulary_that_shards_do_not_divide_is_filled_up_with_ids_of_no_probability(
    n_shards: int,
) -> None:
    vocabulary, width = 257, 5
    table = torch.randn(vocabulary, width, dtype=torch.float64, generator=torch.manual_seed(5))
    values = torch.randn(40, width, dtype=torch.float64, generator=torch.manual_seed(6))
    labels = torch.randint(0, vocabulary, (40,), generator=torch.manual_seed(7))
    labels[0] = vocabulary - 1
    whole = table.clone().requires_grad_()
    expected = functional.cross_entropy(values @ whole.T, labels, reduction="none")
    expected.sum().backward()  # type: ignore[no-untyped-call]

    def work(shards: Shards) -> tuple[Tensor, Tensor, Tensor]:
        embedding = TokenEmbedding(vocabulary, width, shards).double()
        split = embedding.splits["weight"]
        embedding.weight.data.copy_(split.part_of(table))
        assert split.whole_shape(embedding.weight.shape) == table.shape
        logits = without_padding(values @ embedding.weight.T, vocabulary, shards)
        found = cross_entropies(logits, labels, shards)
        found.sum().backward()  # type: ignore[no-untyped-call]
        assert embedding.weight.grad is not None
        return found.detach(), embedding.weight.grad, embedding(labels).detach()

    of_shards = on_shards(n_shards, work)
    for found, _, vectors in of_shards:
        torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(vectors, table[labels])
    gradients = torch.cat([gradient for _, gradient, _ in of_shards])
    torch.testing.assert_close(gradients[:vocabulary], whole.grad, rtol=1e-12, atol=1e-13)
    assert not gradients[vocabulary:].any()
