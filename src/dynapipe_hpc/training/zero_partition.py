"""Partition of a replica in the optimizer's state (ZeRO-1)."""

from collections.abc import Callable

import torch
from torch import Tensor

from dynapipe_hpc.training.collectives import Collectives


class ZeroPartition:
    """Part of flat buffers that a replica updates: one of equal parts with ZeRO-1, otherwise all.

    Attributes:
        is_part: Whether replicas divide the state among them (ZeRO-1).
        n_parts: Number of equal parts into which flat buffers can be divided, one per replica.

    Source:
        Rajbhandari et al., "ZeRO", SC 2020: optimizer state partitioning.
    """

    def __init__(self, collectives: Collectives, *, is_part: bool) -> None:
        """The share of the replica of `collectives`."""
        self.is_part = is_part
        self.n_parts = collectives.n_replicas
        self._collectives = collectives

    def of(self, values: Tensor) -> Tensor:
        """View of the part of a flat buffer that belongs to the share."""
        return values.chunk(self.n_parts)[self._collectives.replica] if self.is_part else values

    def first(self, values: Tensor) -> int:
        """Index in a flat buffer of the first number of the share."""
        n = len(values) // self.n_parts
        return self._collectives.replica * n if self.is_part else 0

    def sum_gradients(self, gradients: Tensor) -> None:
        """Sums the share's gradients over replicas: reduce-scatter, or all-reduce without ZeRO."""
        if self.is_part:
            self._collectives.sum_share_over_replicas(gradients)
        else:
            self._collectives.sum_over_replicas(gradients)

    def gather(self, weights: Tensor) -> None:
        """All-gather: replaces the parts of all other replicas with theirs."""
        if self.is_part:
            self._collectives.gather_shares(weights)

    def sum_by_part(self, values: Tensor, number_of: Callable[[slice], Tensor]) -> Tensor:
        """Sum of a number over all parts of a flat buffer, on every replica.

        The order of the sum is the same with and without ZeRO, so dividing the state changes no
        bit.

        Args:
            values: The flat buffer.
            number_of: Function that computes the number (float64 scalar) of one part of it.

        Returns:
            The sum, shape (1,), float64.
        """
        n = len(values) // self.n_parts
        own_parts = [self._collectives.replica] if self.is_part else range(self.n_parts)
        numbers = torch.zeros(self.n_parts, dtype=torch.float64, device=values.device)
        for part in own_parts:
            numbers[part] = number_of(slice(part * n, (part + 1) * n))
        if self.is_part:
            self._collectives.sum_over_replicas(numbers)
        return numbers.sum(dim=0, keepdim=True)
