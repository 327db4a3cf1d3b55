"""The loss in chunks is the loss, and needs little memory."""

from typing import NamedTuple

import pytest
import torch
from tests.jobs.local_shards import on_shards
from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.architecture.blocks import LOGITS_AT_ONCE
from dynapipe_hpc.models import head as linear_cross_entropy_file
from dynapipe_hpc.models.head import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards, Split

ROWS, TOKENS, WIDTH, IDS = 3, 7, 5, 257


def random(*size: int, seed: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.manual_seed(seed))


HIDDEN, VECTORS = random(ROWS, TOKENS, WIDTH, seed=1), 10 * random(IDS, WIDTH, seed=2)
LABELS = torch.randint(0, IDS, (ROWS, TOKENS), generator=torch.manual_seed(3))
LABELS[0, :2] = torch.tensor([0, IDS - 1])
WEIGHTS = torch.rand(ROWS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(4))
WEIGHTS[1, 3:] = 0
SCALE = 7.0  # of the loss in the backward pass


class Outcome(NamedTuple):
    """The loss, and gradients of `SCALE` times the loss."""

    loss: Tensor
    of_hidden: Tensor
    of_vectors: Tensor


def outcome_of(loss: Tensor, hidden: Tensor, vectors: Tensor) -> Outcome:
    (SCALE * loss).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert vectors.grad is not None
    return Outcome(loss.detach(), hidden.grad, vectors.grad)


def computed(shards: Shards, dtype: torch.dtype = torch.float64) -> Outcome:
    split = Split(0, 1, shards.shard, shards.n_shards, IDS)
    hidden = HIDDEN.to(dtype, copy=True).requires_grad_()
    vectors = split.part_of(VECTORS).to(dtype, copy=True).requires_grad_()
    losses = linear_cross_entropy(hidden, vectors, LABELS, Vocabulary(IDS, shards))
    return outcome_of((losses * WEIGHTS.to(losses.dtype)).sum(), hidden, vectors)


def joined(of_shards: list[Outcome]) -> Outcome:
    """Every shard has the loss and adds its part to the gradient of `hidden`."""
    assert all(torch.equal(found.loss, of_shards[0].loss) for found in of_shards)
    vectors = torch.cat([found.of_vectors for found in of_shards])
    assert not vectors[IDS:].any()
    of_hidden = torch.stack([found.of_hidden for found in of_shards]).sum(0)
    return Outcome(of_shards[0].loss, of_hidden, vectors[:IDS])


def plain() -> Outcome:
    """By autograd, with all logits at once."""
    hidden, vectors = HIDDEN.clone().requires_grad_(), VECTORS.clone().requires_grad_()
    logits = (hidden @ vectors.T).flatten(0, 1)
    losses = functional.cross_entropy(logits, LABELS.flatten(), reduction="none")
    return outcome_of((losses * WEIGHTS.flatten()).sum(), hidden, vectors)


@pytest.mark.parametrize("n_shards", [1, 2, 3, 5])
@pytest.mark.parametrize("logits_at_once", [1, 500, ROWS * TOKENS * IDS, 1 << 25])
def test_loss_and_gradients_are_those_of_all_logits(
    n_shards: int, logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_cross_entropy_file, "LOGITS_AT_ONCE", logits_at_once)
    found = joined(on_shards(n_shards, computed))
    for one, other in zip(found, plain(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n_tokens", "n_ids"), [(8192, 50304), (4096, 128256), (50_000, 32128)])
def test_wide_chunks_of_ids_suit_the_kernels_of_gpus(n_tokens: int, n_ids: int) -> None:
    chunks = list(Vocabulary(n_ids, ONE_SHARD).chunks(n_tokens))
    assert [i for chunk in chunks for i in chunk] == list(range(n_ids))
    assert all(len(chunk) % 128 == 0 for chunk in chunks)
    assert all(n_tokens * len(chunk) <= LOGITS_AT_ONCE for chunk in chunks)
    assert len(chunks) <= 1.25 * n_tokens * n_ids / LOGITS_AT_ONCE + 1


@pytest.mark.parametrize("n_shards", [1, 2])
def test_logits_of_16_bits_add_up_in_32(n_shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cross_entropy_file, "LOGITS_AT_ONCE", 500)
    hidden, vectors = HIDDEN.bfloat16(), VECTORS.bfloat16()
    logits = functional.linear(hidden, vectors).float().flatten(0, 1)
    losses = functional.cross_entropy(logits, LABELS.flatten(), reduction="none")
    expected = (losses * WEIGHTS.flatten().float()).sum()
    found = on_shards(n_shards, lambda shards: computed(shards, torch.bfloat16))
    for outcome in found:
        assert outcome.loss.dtype == torch.float32
        assert outcome.of_hidden.dtype == outcome.of_vectors.dtype == torch.bfloat16
        torch.testing.assert_close(outcome.loss, expected, rtol=1e-6, atol=0)
    exact = plain()
    for one, other in zip(joined(found)[1:], exact[1:], strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=0.05 * float(other.abs().max())
        )


@pytest.mark.parametrize("n_tokens", [8192, 16_384])
def test_a_large_vocabulary_needs_less_than_a_gigabyte_beside_weights(n_tokens: int) -> None:
    def empty(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.bfloat16, device="meta", requires_grad=True)

    hidden, vectors = empty(1, n_tokens, 4096), empty(50_304, 4096)
    labels = torch.empty(1, n_tokens, dtype=torch.int64, device="meta")
    with LiveMemory() as live:
        loss = linear_cross_entropy(hidden, vectors, labels, Vocabulary(50_304, ONE_SHARD)).sum()
        kept_bytes, forward_bytes = live.live_bytes, live.peak_bytes
        live.restart()
        loss.backward()  # type: ignore[no-untyped-call]
    per_token, chunk_bytes = n_tokens * 64, (1 << 25) * (2 + 4)
    assert kept_bytes < per_token
    assert forward_bytes < chunk_bytes + 2 * per_token
    gradients = vectors.nbytes + 2 * hidden.nbytes  # the latter in float32
    assert live.peak_bytes < chunk_bytes + gradients + 2 * per_token
    if n_tokens == 8192:
        assert live.peak_bytes + hidden.nbytes < 1.0e9
