"""Account of the memory that micro-batches keep between their passes."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor


class MemoryAccount(Protocol):
    """Account of the memory that micro-batches keep between their passes."""

    @property
    def peak_bytes(self) -> int:
        """Peak of the kept memory since the last `restart`, in bytes."""
        ...

    @property
    def has_transient(self) -> bool:
        """Whether the peak includes memory that passes need only while they run."""
        ...

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Adds a boundary tensor to the account of a micro-batch."""
        ...

    def recording(self, microbatch: int) -> AbstractContextManager[None]:
        """Adds what autograd saves inside the block to the account of a micro-batch."""
        ...

    def release(self, microbatch: int) -> None:
        """Takes a micro-batch off the account."""
        ...

    def restart(self) -> None:
        """Starts a new peak at the current memory."""
        ...


class ActivationMemory:
    """Account of a rank's activations: tensors saved by autograd, and boundary tensors.

    A storage counts once, however many tensors share it; weights do not count. Memory that a pass
    needs only while it runs is not included.

    Attributes:
        live_bytes: Memory kept now, in bytes.
        peak_bytes: Peak of the kept memory since the last `restart`, in bytes.
    """

    has_transient = False

    def __init__(self, weights: Iterable[Tensor]) -> None:
        """Opens the account; the storages of `weights` must not change from now on."""
        self._weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self._kept: dict[int, dict[int, int]] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Adds a boundary tensor to a micro-batch's account, unless it is already there.

        A tensor that is part of a larger buffer must be added before autograd saves it, so that
        only the part counts.
        """
        self._charge(microbatch, tensor, tensor.nbytes)

    @contextmanager
    def recording(self, microbatch: int) -> Iterator[None]:
        """Adds what autograd saves inside the block to a micro-batch's account."""

        def pack(tensor: Tensor) -> Tensor:
            self._charge(microbatch, tensor, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def release(self, microbatch: int) -> None:
        """Takes a micro-batch off the account."""
        self.live_bytes -= sum(self._kept.pop(microbatch, {}).values())

    def restart(self) -> None:
        """Starts a new peak at the current memory."""
        self.peak_bytes = self.live_bytes

    def _charge(self, microbatch: int, tensor: Tensor, n_bytes: int) -> None:
        kept = self._kept.setdefault(microbatch, {})
        address = tensor.untyped_storage().data_ptr()
        if address in kept or address in self._weights:
            return
        kept[address] = n_bytes
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
