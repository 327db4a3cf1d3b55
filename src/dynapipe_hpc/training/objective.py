"""Objectives: the loss of a micro-batch, of its tokens or of its preference pairs.

Source of preference losses: Rafailov et al., "Direct Preference Optimization", arXiv:2305.18290,
equation 7; with smoothed labels: Mitchell, "A note on DPO with noisy preferences", 2023; IPO: Azar
et al., arXiv:2310.12036, equation 17.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import Labels, PreferencePairs
from dynapipe_hpc.training.config import PreferenceLossConfig

Objective = Callable[[Tensor, Labels], Tensor]
"""Contribution of a micro-batch to the loss of its global batch, which is the sum over all.

Takes the loss of each prediction, shape (rows, tokens), and its labels.
"""


def weighted_tokens(token_losses: Tensor, labels: Labels) -> Tensor:
    """Weighted sum of the losses of tokens: the loss that is trained; see `token_weights`."""
    return (token_losses * labels.weights.to(token_losses.dtype)).sum()


class SampleTable:
    """Two numbers per sample, summed over micro-batches, shape (2, n_samples), float64."""

    def __init__(self, samples: Sequence[Sample], device: torch.device) -> None:
        """A column for each of `samples`, in their order, on a device."""
        sample_ids = torch.tensor([sample.sample_id for sample in samples], device=device)
        self._sample_ids, self._columns = sample_ids.sort()

    def zeros(self) -> Tensor:
        """The table before the first micro-batch."""
        return torch.zeros(2, len(self._columns), dtype=torch.float64, device=self._columns.device)

    def columns_of(self, sample_ids: Tensor) -> Tensor:
        """The columns of samples by their ids; padding gets the column of the smallest id."""
        return self._columns[torch.searchsorted(self._sample_ids, sample_ids)]


class SampleLosses(SampleTable):
    """Sums of losses and numbers of trained tokens, per sample, for an evaluation."""

    def loss(self, token_losses: Tensor, labels: Labels) -> Tensor:
        """The per-sample table of a micro-batch, with zeros for samples of other micro-batches."""
        table = self.zeros()
        # Padding is not trained, so it adds nothing to the column that it gets.
        columns = self.columns_of(labels.sample_ids.flatten())
        is_trained = labels.weights.flatten() > 0
        table[0].index_add_(0, columns, token_losses.flatten().double().where(is_trained, 0))
        table[1].index_add_(0, columns, is_trained.double())
        return table


FloatArray = npt.NDArray[np.float64]


class PreferenceNumbers(NamedTuple):
    """Sums over preference pairs; `kl` estimates the divergence from the reference."""

    chosen_reward: float = 0.0  # beta times the log-ratio of model and reference
    rejected_reward: float = 0.0
    accuracy: float = 0.0
    chosen_log_prob: float = 0.0
    rejected_log_prob: float = 0.0
    kl: float = 0.0  # half of the mean of both answers' squared log-ratios

    @classmethod
    def from_pairs(cls, log_probs: Tensor, ratios: Tensor, beta: float) -> Tensor:
        """The sums as a tensor on the device of the pairs."""
        columns = (
            *(beta * ratios).unbind(1),
            (ratios[:, 0] > ratios[:, 1]).to(ratios.dtype),
            *log_probs.unbind(1),
            ratios.square().mean(1) / 2,
        )
        return torch.stack([column.sum() for column in columns])


def pair_losses(
    log_probs: Tensor, references: Tensor, lengths: Tensor, config: PreferenceLossConfig
) -> tuple[Tensor, Tensor]:
    """Losses of preference pairs, shape (n_pairs,), and their `PreferenceNumbers` as a tensor.

    Arguments are of chosen and rejected answers, shape (n_pairs, 2); `lengths` in tokens.
    """
    ratios = log_probs - references
    compared = ratios / lengths if config.per_token else ratios
    margins = compared[:, 0] - compared[:, 1]
    if config.objective == "ipo":
        losses = (margins - 1 / (2 * config.beta)).square()
    else:
        smoothing = config.label_smoothing
        losses = -(1 - smoothing) * logsigmoid(config.beta * margins)
        if smoothing:
            losses = losses - smoothing * logsigmoid(-config.beta * margins)
    if config.sft_weight:
        losses = losses - config.sft_weight * log_probs[:, 0] / lengths[:, 0]
    with torch.no_grad():
        return losses, PreferenceNumbers.from_pairs(log_probs, ratios, config.beta)


class PreferenceLoss:
    """Weighted sum of losses of preference pairs: the loss that is trained; see `pair_losses`."""

    def __init__(
        self,
        config: PreferenceLossConfig,
        references: Tensor | FloatArray,
        device: torch.device | None = None,
    ) -> None:
        """Takes the reference's log-probabilities of answers, shape (n_samples, 2)."""
        self._config, self._references = config, torch.as_tensor(references, device=device)
        self._numbers = self._references.new_zeros(len(PreferenceNumbers._fields))

    def loss(self, token_losses: Tensor, labels: Labels) -> Tensor:
        """The loss of a micro-batch, a float64 scalar."""
        pairs = pairs_of(labels)
        log_probs, lengths = answer_sums(token_losses, labels, pairs)
        references = self._references.index_select(0, pairs.sample_ids)
        losses, numbers = pair_losses(log_probs, references, lengths, self._config)
        self._numbers += numbers
        return (losses * pairs.weights).sum()

    def take_numbers(self) -> PreferenceNumbers:
        """Numbers of all pairs since the last call; waits for the device."""
        numbers = PreferenceNumbers(*self._numbers.tolist())
        self._numbers.zero_()
        return numbers


class AnswerLogProbs(SampleTable):
    """Log-probabilities of chosen and of rejected answers, for an evaluation or a reference."""

    def loss(self, token_losses: Tensor, labels: Labels) -> Tensor:
        """The per-sample table of a micro-batch, with zeros for samples of other micro-batches."""
        pairs = pairs_of(labels)
        log_probs, _ = answer_sums(token_losses, labels, pairs)
        return self.zeros().index_copy_(1, self.columns_of(pairs.sample_ids), log_probs.t())


def losses_of_tables(
    log_probs: FloatArray,
    references: FloatArray,
    lengths: Sequence[tuple[int, int]],
    config: PreferenceLossConfig,
) -> tuple[FloatArray, PreferenceNumbers]:
    """Losses of evaluated pairs, and their `PreferenceNumbers`; see `pair_losses`."""
    losses, numbers = pair_losses(
        torch.tensor(log_probs),
        torch.tensor(references),
        torch.tensor(lengths, dtype=torch.float64),
        config,
    )
    return losses.numpy(), PreferenceNumbers(*numbers.tolist())


def pairs_of(labels: Labels) -> PreferencePairs:
    """The preference pairs of a micro-batch; raises an error if it has none."""
    if labels.pairs is None:
        raise ValueError("a preference loss needs a micro-batch of preference pairs")
    return labels.pairs


def answer_sums(
    token_losses: Tensor, labels: Labels, pairs: PreferencePairs
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and lengths of chosen and rejected answers, each (n_pairs, 2), float64."""
    is_trained = labels.weights.flatten() > 0
    answers = pairs.answers.flatten()
    zeros = token_losses.new_zeros(2 * len(pairs.sample_ids), dtype=torch.float64)
    terms = -token_losses.flatten().double().where(is_trained, 0)
    log_probs = zeros.index_add(0, answers, terms)
    lengths = zeros.index_add(0, answers, is_trained.double())
    return log_probs.view(-1, 2), lengths.view(-1, 2)
