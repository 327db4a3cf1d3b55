"""Numbered buffers for tensors that are sent or received."""

import math

import torch
from torch import Tensor


class Buffers:
    """Buffers of one type on one device, each of the size of the largest tensor taken from it."""

    def __init__(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self._dtype = dtype
        self._device = device
        self._held: dict[int, Tensor] = {}

    def take(self, number: int, shape: tuple[int, ...]) -> Tensor:
        """A contiguous tensor at the start of a buffer, which grows if it is too small."""
        n_numbers = math.prod(shape)
        if number not in self._held or self._held[number].numel() < n_numbers:
            self._held.pop(number, None)  # first, so that old and new never exist together
            self._held[number] = torch.empty(n_numbers, dtype=self._dtype, device=self._device)
        return self._held[number][:n_numbers].view(shape)

    def clear(self) -> None:
        self._held.clear()
