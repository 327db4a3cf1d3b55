"""Objectives combine the losses of tokens, by weight or by sample."""

import math

import torch

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import NO_SAMPLE, TokenBatch
from dynapipe_hpc.training.objective import SampleLosses, weighted_tokens

IDS = torch.zeros(2, 4, dtype=torch.int64)  # objectives do not read them
WEIGHTS = torch.tensor([[0, 0.5, 0.25, 0], [0.25, 0, 2, 0]], dtype=torch.float64)
SAMPLE_IDS = torch.tensor([[7, 7, 3, NO_SAMPLE], [9, 9, 9, NO_SAMPLE]])
TOKENS = TokenBatch(IDS, IDS, WEIGHTS, SAMPLE_IDS)
LOSSES = torch.tensor([[1.0, 2, 3, 5], [8, 13, 21, 34]])
SAMPLES = [Sample(9, 1, 2), Sample(4, 0, 1), Sample(7, 1, 1), Sample(3, 0, 1)]


def test_the_weighted_loss_and_its_gradient_are_those_of_trained_tokens() -> None:
    losses = LOSSES.clone().requires_grad_()
    loss = weighted_tokens(losses, TOKENS)
    assert loss.dtype == torch.float32
    assert loss.item() == 0.5 * 2 + 0.25 * 3 + 0.25 * 8 + 2 * 21
    torch.autograd.backward(3 * loss)
    assert losses.grad is not None
    assert losses.grad.tolist() == (3 * WEIGHTS).tolist()


def test_losses_of_samples_are_in_their_order_and_count_trained_tokens_once() -> None:
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(LOSSES, TOKENS)
    assert table.tolist() == [[8 + 21, 0, 2, 3], [2, 0, 1, 1]]


def test_what_is_not_trained_leaves_the_losses_of_samples_finite() -> None:
    losses = LOSSES.where(WEIGHTS > 0, math.inf)
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(losses, TOKENS)
    assert table[0].tolist() == [8 + 21, 0, 2, 3]
