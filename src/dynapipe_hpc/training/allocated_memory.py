"""GPU memory: account of activations, and reservation before training."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor

# The allocator serves requests of up to 1 MiB from separate segments of 2 MiB.
SMALL_BYTES, RESERVED_SMALL = 1 << 20, 64
MARGIN_BYTES = 256 << 20  # left on the device for libraries that compute
ADVISED_SHARE = 0.9
"""Largest share of a GPU that plans should fill."""
PLANNED_SHARE = 0.93
"""Share of the reserved memory that a plan may fill. The rest is for fragments between tensors of
many sizes, receive buffers and sent tensors, which plans do not count."""


class AllocatedMemory:
    """Account of a GPU's activations: memory that torch's allocator hands out in an iteration.

    It includes transient memory of passes and buffers of transfers, and takes no time.
    """

    has_transient = True

    def __init__(self, device: torch.device) -> None:
        """Opens the account of a device; only one may be open in a process."""
        self._device = device
        self.restart()

    @property
    def peak_bytes(self) -> int:
        """Peak since the last `restart`, minus the memory allocated at that time, in bytes."""
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Does nothing: the allocator keeps count."""

    def recording(self, microbatch: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Does nothing: the allocator keeps count."""
        return nullcontext()

    def release(self, microbatch: int) -> None:
        """Does nothing: the allocator keeps count."""

    def restart(self) -> None:
        """Starts a new peak at the memory allocated now, which is static."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)


class LiveAllocations(AllocatedMemory):
    """Account of what a GPU's allocator hands out inside the block; like `LiveMemory`."""

    def __enter__(self) -> Self:
        super().restart()
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""

    @property
    def live_bytes(self) -> int:
        """Memory allocated since the start and not yet freed, in bytes."""
        return torch.cuda.memory_allocated(self._device) - self._before

    def restart(self) -> None:
        """Starts a new peak at the current memory."""
        torch.cuda.reset_peak_memory_stats(self._device)


def reserved_bytes(planned_bytes: int) -> int:
    """Memory to reserve so that plans can fill `planned_bytes` of it."""
    return math.ceil(planned_bytes / PLANNED_SHARE)


def reserve(device: torch.device, limit_bytes: int) -> None:
    """Lets torch's allocator take the memory of a GPU once, before training; raises `MemoryError`.

    It allocates and frees a block up to the limit; the block stays with the allocator.
    """
    # Building the model leaves pieces in the cache that are too small for large tensors.
    torch.cuda.empty_cache()
    n_missing = limit_bytes - torch.cuda.memory_reserved(device)
    n_free = torch.cuda.mem_get_info(device)[0] - MARGIN_BYTES
    if n_missing > n_free:
        raise MemoryError(
            f"cannot reserve {limit_bytes} bytes: {n_missing} more are needed, but {device} "
            f"has {n_free} free"
        )
    small = [_block(device, SMALL_BYTES) for _ in range(RESERVED_SMALL)]
    n_large = limit_bytes - torch.cuda.memory_reserved(device)
    if n_large > 0:
        small.append(_block(device, n_large))
    del small


def _block(device: torch.device, n_bytes: int) -> Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)
