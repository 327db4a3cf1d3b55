"""Transfers of tensors over torch.distributed: NCCL between GPUs, gloo between processors."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload

_Key = tuple[int, Payload]


class TorchTransport:
    """A rank's `Transport` over a process group.

    Messages of a pair match in the order in which each side starts them, which plans make the
    same on both sides. NCCL needs that, in both directions together: a pair has one stream. The
    stream starts behind what was launched before, so that a tensor is sent when it is computed
    and a slot is received into when it has been read. To wait is to make the computation wait,
    on the device; over gloo, which has no streams, it is this thread that waits.

    No message says what it is, unlike MPI's: NCCL's have no room for it. Ranks that disagree on
    a size hang or end, so plans are compared before they are executed.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
        """Opens the transport.

        Args:
            group: All ranks that plans number, in their order.
            device: Of all tensors.
            dtype: Of all tensors.
        """
        self._group = group
        self._device = device
        self._dtype = dtype
        self._sends: dict[_Key, Work] = {}
        self._receives: dict[_Key, tuple[Work, Tensor]] = {}
        self._slots: dict[int, Tensor] = {}

    def connect(self, peers: Iterable[int]) -> None:
        """Exchanges a number with peers, as the first transfer of a pair takes long.

        Args:
            peers: In an order in which all ranks together can go through theirs; if a rank is
                among the peers of another, that is among its own.
        """
        for peer in peers:
            number = torch.zeros(1, dtype=self._dtype, device=self._device)
            is_first = self._group.rank() < peer
            transfer = self._group.send if is_first else self._group.recv
            _wait(transfer([number], peer, 0))

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Starts sending a contiguous tensor, which is not changed until waited for."""
        self._sends[microbatch, payload] = self._group.send([tensor], peer, 0)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        """Waits until a send no longer needs its tensor."""
        _wait(self._sends.pop((microbatch, payload)))

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], slot: int
    ) -> None:
        """Starts receiving into receive buffer `slot`."""
        tensor = self._buffer(slot, math.prod(shape)).view(shape)
        work = self._group.recv([tensor], peer, 0)
        self._receives[microbatch, payload] = (work, tensor)

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits for a tensor; it stays valid until its slot is received into again.

        Raises:
            TransportError: The peer is gone.
        """
        work, tensor = self._receives.pop((microbatch, payload))
        _wait(work)
        return tensor

    def _buffer(self, slot: int, n_numbers: int) -> Tensor:
        """The first numbers of a receive buffer, which is grown on demand."""
        buffer = self._slots.get(slot)
        if buffer is None or buffer.numel() < n_numbers:
            buffer = torch.empty(n_numbers, dtype=self._dtype, device=self._device)
            self._slots[slot] = buffer
        return buffer[:n_numbers]


def _wait(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise TransportError(f"a transfer failed: {error}") from error
