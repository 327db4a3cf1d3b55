"""AdamW on flat buffers, in the fused kernel of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from dynapipe_hpc.training.config import TrainingConfig

STATE_KINDS = ("weight", "first_moment", "second_moment")
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Segment:
    """Numbers that belong to consecutive weights in `FlatParameters`.

    Attributes:
        start: Index of the first of those weights.
        values: Numbers, shape (n,), not a copy.
    """

    start: int
    values: Tensor


FlatState = Mapping[str, Segment]  # by kind, see `STATE_KINDS`


class AdamW:
    """AdamW on consecutive weights, of which the first decay.

    The class of `torch.optim` calls the same kernel, but imports torch's compiler: seconds of
    processor time at the start of every rank.
    """

    def __init__(
        self, weights: Tensor, gradients: Tensor, n_decaying: int, config: TrainingConfig
    ) -> None:
        """Takes over `weights` and reads `gradients`, both of shape (n,) and at least 32 bits."""
        self._config = config
        self._weights, self._gradients = weights, gradients
        self._sizes = [n_decaying, len(weights) - n_decaying]
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
        """Gradients, weights, moments and number of updates of what decays, and of the rest."""
        pieces = (torch.split(each, self._sizes) for each in (self._gradients, *self._state))
        return list(zip(*pieces, self._n_updates, strict=True))

    def state(self, first: int) -> FlatState:
        """Weights and moments, of which `first` is the index of the first in the flat buffer."""
        kinds = zip(STATE_KINDS, self._state, strict=True)
        return {kind: Segment(first, values) for kind, values in kinds}

    def update(self, learning_rate: float, skips: Tensor) -> None:
        """Updates weights and moments.

        Args:
            learning_rate: Learning rate.
            skips: 1.0 if the update is skipped, else 0.0: a scalar that the kernel reads.
        """
        first_decay, second_decay = self._config.betas
        decays = (self._config.weight_decay, 0.0)
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
