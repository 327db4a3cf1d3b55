"""AdamW on flat buffers, in the fused kernel of torch."""

from functools import cached_property

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.flat_parameters import FlatState, Segment

STATE_KINDS = ("weight", "first_moment", "second_moment")
EPSILON = 1e-8


class AdamW:
    """AdamW on consecutive weights, of which the first are matrices.

    With the same state, number of updates and gradients, an update gives the same bits. The class
    of `torch.optim` calls the same kernel, but imports torch's compiler: seconds of processor time
    at the start of every rank.
    """

    def __init__(
        self, weights: Tensor, gradients: Tensor, n_matrices: int, config: TrainingConfig
    ) -> None:
        """Takes over `weights` and reads `gradients`, both of shape (n,) and at least 32 bits."""
        self._config = config
        self._weights, self._gradients = weights, gradients
        self._sizes = [n_matrices, len(weights) - n_matrices]
        # The kernel counts the updates of each group by itself.
        self._n_updates = torch.zeros(2, dtype=torch.float32, device=weights.device)

    @property
    def n_updates(self) -> int:
        """Number of updates so far, without skipped ones; the host waits for the device."""
        return int(self._n_updates[0].item())

    @n_updates.setter
    def n_updates(self, value: int) -> None:
        self._n_updates.fill_(value)

    @property
    def tensors(self) -> list[Tensor]:
        """Weights and moments, each of shape (n,)."""
        return list(self._state)

    @cached_property
    def _state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and moments; the latter exist from their first use, as a profile has none."""
        return self._weights, torch.zeros_like(self._weights), torch.zeros_like(self._weights)

    @cached_property
    def _groups(self) -> list[tuple[Tensor, ...]]:
        """Gradients, weights, moments and number of updates of matrices, and of the rest."""
        pieces = (torch.split(each, self._sizes) for each in (self._gradients, *self._state))
        return list(zip(*pieces, self._n_updates, strict=True))

    def state(self, first: int) -> FlatState:
        """Weights and moments, of which `first` is the index of the first in the flat buffer."""
        kinds = zip(STATE_KINDS, self._state, strict=True)
        return {kind: Segment(first, values) for kind, values in kinds}

    def update(self, learning_rate: float, skips: Tensor) -> None:
        """Updates weights and moments, unless `skips` is 1.0 (a scalar on the device, else 0.0)."""
        first_decay, second_decay = self._config.betas
        decay = self._config.weight_decay
        decays = (decay, decay if self._config.decay == "all" else 0.0)
        for (gradients, weights, first, second, n), decay in zip(self._groups, decays, strict=True):
            adamw(
                [weights],
                [gradients],
                [first],
                [second],
                [],
                [n],
                fused=True,
                found_inf=skips,
                amsgrad=False,
                beta1=first_decay,
                beta2=second_decay,
                lr=learning_rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )
