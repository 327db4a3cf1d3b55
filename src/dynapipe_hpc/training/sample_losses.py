"""Losses of an evaluation, sample by sample."""

import torch
from torch import Tensor


class SampleLosses:
    """Sums of the losses of samples' trained tokens, and their number.

    The weight of a token is not a weight here but the number of its sample, from 1; tokens with
    number 0 do not count.

    Attributes:
        table: Sums of losses, then numbers of tokens, by number of the sample; shape
            (2, n_samples + 1), float64.
    """

    def __init__(self, n_samples: int, device: torch.device) -> None:
        """Starts with no tokens of `n_samples` samples."""
        self.table = torch.zeros(2, n_samples + 1, dtype=torch.float64, device=device)

    def add(self, losses: Tensor, numbers: Tensor) -> None:
        """Adds tokens: their losses, and the numbers of their samples, each of shape (n,)."""
        sample = numbers.long()
        wide = losses.double()
        self.table[0].index_add_(0, sample, wide)
        self.table[1].index_add_(0, sample, torch.ones_like(wide))
