"""Objectives: the loss of a micro-batch, from the losses of its tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import Labels

Objective = Callable[[Tensor, Labels], Tensor]
"""Contribution of a micro-batch to the loss of its global batch, which is the sum over all.

Takes the loss of each prediction, shape (rows, tokens), and its labels.
"""


def weighted_tokens(token_losses: Tensor, labels: Labels) -> Tensor:
    """Weighted sum of the losses of tokens, which is trained; see `token_weights`."""
    return (token_losses * labels.weights.to(token_losses.dtype)).sum()


class SampleTable:
    """Table of two numbers per sample, a sum over micro-batches: (2, n_samples), float64."""

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
        """The table of a micro-batch, with zeros for samples of other micro-batches."""
        table = self.zeros()
        # Padding is not trained, so it adds nothing to the column that it gets.
        columns = self.columns_of(labels.sample_ids.flatten())
        is_trained = labels.weights.flatten() > 0
        table[0].index_add_(0, columns, token_losses.flatten().double().where(is_trained, 0))
        table[1].index_add_(0, columns, is_trained.double())
        return table
