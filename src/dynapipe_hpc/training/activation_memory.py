"""Counts the memory that micro-batches keep between their passes."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor


class MemoryAccount(Protocol):
    """An account of what micro-batches keep between their passes."""

    @property
    def peak_bytes(self) -> int:
        """The most kept at any moment since the last `restart`."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether that counts what passes need only while they run."""
        ...

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Charges a boundary tensor."""
        ...

    def recording(self, microbatch: int) -> AbstractContextManager[None]:
        """Charges what autograd saves inside the block."""
        ...

    def release(self, microbatch: int) -> None:
        """Takes a micro-batch off the account."""
        ...

    def restart(self) -> None:
        """Starts a new peak."""
        ...


class ActivationMemory:
    """The account of a rank's activations: what autograd saved, and the boundary tensors.

    A storage counts once however many tensors share it; weights do not count. What a pass
    needs only while it runs is not seen.

    Attributes:
        live_bytes: Kept now.
        peak_bytes: The most kept at any moment since the last `restart`.
    """

    is_whole = False

    def __init__(self, weights: Iterable[Tensor]) -> None:
        """Opens the account; `weights` stay where they are from here on."""
        self._weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self._kept: dict[int, dict[int, int]] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Charges a boundary tensor unless it is charged already.

        One that is part of a larger buffer must be kept before it is saved, so that no more
        than the part counts.
        """
        self._charge(microbatch, tensor, tensor.nbytes)

    @contextmanager
    def recording(self, microbatch: int) -> Iterator[None]:
        """Charges what autograd saves inside the block to a micro-batch."""

        def pack(tensor: Tensor) -> Tensor:
            self._charge(microbatch, tensor, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def release(self, microbatch: int) -> None:
        """Takes a micro-batch off the account."""
        self.live_bytes -= sum(self._kept.pop(microbatch).values())

    def restart(self) -> None:
        """Starts a new peak at what is kept now."""
        self.peak_bytes = self.live_bytes

    def _charge(self, microbatch: int, tensor: Tensor, n_bytes: int) -> None:
        kept = self._kept.setdefault(microbatch, {})
        address = tensor.untyped_storage().data_ptr()
        if address in kept or address in self._weights:
            return
        kept[address] = n_bytes
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
