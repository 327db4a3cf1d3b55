"""Objectives combine the losses of tokens, by weight or by sample."""

import math

import pytest
import torch

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import NO_SAMPLE, Labels
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.objective import SampleLosses, weighted_tokens
from dynapipe_hpc.training.token_loader import token_weights

IDS = torch.zeros(2, 4, dtype=torch.int64)  # objectives do not read them
WEIGHTS = torch.tensor([[0, 0.5, 0.25, 0], [0.25, 0, 2, 0]], dtype=torch.float64)
SAMPLE_IDS = torch.tensor([[7, 7, 3, NO_SAMPLE], [9, 9, 9, NO_SAMPLE]])
LABELS = Labels(IDS, WEIGHTS, SAMPLE_IDS)
LOSSES = torch.tensor([[1.0, 2, 3, 5], [8, 13, 21, 34]])
SAMPLES = [Sample(9, 1, 2), Sample(4, 0, 1), Sample(7, 1, 1), Sample(3, 0, 1)]


def test_the_weighted_loss_and_its_gradient_are_those_of_trained_tokens() -> None:
    losses = LOSSES.clone().requires_grad_()
    loss = weighted_tokens(losses, LABELS)
    assert loss.dtype == torch.float32
    assert loss.item() == 0.5 * 2 + 0.25 * 3 + 0.25 * 8 + 2 * 21
    torch.autograd.backward(3 * loss)
    assert losses.grad is not None
    assert losses.grad.tolist() == (3 * WEIGHTS).tolist()


def test_losses_of_samples_are_in_their_order_and_count_trained_tokens_once() -> None:
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(LOSSES, LABELS)
    assert table.tolist() == [[8 + 21, 0, 2, 3], [2, 0, 1, 1]]


def test_what_is_not_trained_leaves_the_losses_of_samples_finite() -> None:
    losses = LOSSES.where(WEIGHTS > 0, math.inf)
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(losses, LABELS)
    assert table[0].tolist() == [8 + 21, 0, 2, 3]


LOSS_SAMPLES = [
    Sample(0, 5, 1, task_id=0), Sample(1, 0, 3, task_id=0), Sample(2, 9, 4, task_id=7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("token", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
        ("sample", {0: 1 / 3, 1: 1 / 9, 2: 1 / 12}),
        ("task", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
    ],
)
def test_a_token_weighs_as_what_counts_alike(
    weighting: LossWeighting, expected: dict[int, float]
) -> None:
    assert token_weights(LOSS_SAMPLES, weighting) == expected


def test_a_sample_that_comes_twice_counts_twice() -> None:
    weights = token_weights([LOSS_SAMPLES[0], LOSS_SAMPLES[0], LOSS_SAMPLES[1]], "token")
    assert weights == {0: 1 / 5, 1: 1 / 5}
