"""The memory of a GPU: what activations take of it, and how it is reserved."""

from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor

# The allocator serves requests of up to a MiB from segments of 2 MiB of their own.
SMALL_BYTES, RESERVED_SMALL = 1 << 20, 64
MARGIN_BYTES = 256 << 20  # of the device, for the libraries that compute and communicate


class AllocatedMemory:
    """The account of a GPU's activations: what torch's allocator hands out in an iteration.

    It knows what passes need only while they run, and costs nothing. Receive buffers count once
    they have grown to their size, before the first peak that is compared.

    Attributes:
        is_whole: True; see `MemoryAccount`.
    """

    is_whole = True

    def __init__(self, device: torch.device) -> None:
        """Opens the account of a device, of which this process has the only one."""
        self._device = device
        self.restart()

    @property
    def peak_bytes(self) -> int:
        """The most at any moment since the last `restart`, beyond what there was then."""
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Nothing to do: the allocator knows."""

    def recording(self, microbatch: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing to do: the allocator knows."""
        return nullcontext()

    def release(self, microbatch: int) -> None:
        """Nothing to do: the allocator knows."""

    def restart(self) -> None:
        """Starts a new peak at what is allocated now, which is static."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)


class LiveAllocations:
    """While entered, the account of what a GPU's allocator hands out; as `LiveMemory`."""

    def __init__(self, device: torch.device) -> None:
        """Opens the account of a device."""
        self._device = device
        self._before = 0

    def __enter__(self) -> Self:
        """Starts at what is allocated now."""
        self._before = torch.cuda.memory_allocated(self._device)
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do."""

    @property
    def live_bytes(self) -> int:
        """Allocated since the start and not yet freed."""
        return torch.cuda.memory_allocated(self._device) - self._before

    @property
    def peak_bytes(self) -> int:
        """The most at any moment since the last `restart`."""
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def restart(self) -> None:
        """Starts a new peak at what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self._device)


def reserve(device: torch.device, limit_bytes: int) -> None:
    """Lets torch's allocator take memory of a GPU once, before training.

    One block of all that is left up to the limit goes back to the allocator, not to the device:
    whatever is allocated later is cut from it, and joined to it again when it is free.

    Args:
        device: A GPU.
        limit_bytes: What the process may use, weights and all.

    Raises:
        MemoryError: The device has less.
    """
    # What building the model left in the cache lies in pieces that large tensors cannot use.
    torch.cuda.empty_cache()
    n_missing = limit_bytes - torch.cuda.memory_reserved(device)
    n_free = torch.cuda.mem_get_info(device)[0] - MARGIN_BYTES
    if n_missing > n_free:
        raise MemoryError(
            f"{limit_bytes} bytes are to be used, of which {n_missing} are missing, but {device} "
            f"has {n_free} to give"
        )
    small = [_block(device, SMALL_BYTES) for _ in range(RESERVED_SMALL)]
    n_large = limit_bytes - torch.cuda.memory_reserved(device)
    if n_large > 0:
        small.append(_block(device, n_large))
    del small


def _block(device: torch.device, n_bytes: int) -> Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)
