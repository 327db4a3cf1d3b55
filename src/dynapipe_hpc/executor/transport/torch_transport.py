"""Point-to-point transfers over torch.distributed: NCCL between GPUs, gloo otherwise."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload

_Key = tuple[int, Payload]


class TorchTransport:
    """A rank's `Transport` over a process group of torch.distributed.

    Messages of a pair match in the order in which each side starts them, and plans make sure that
    this order is the same on both sides. NCCL needs that for both directions together, because a
    pair has one stream. The stream starts after what was launched before, so a tensor is sent when
    it has been computed, and a slot is received into when it has been read. Waiting makes the
    compute stream wait on the device; with gloo, which has no streams, this thread waits.

    Unlike MPI messages, these carry no tag. Ranks that disagree on a size hang or end, so plans
    are compared before they are executed.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
        """Opens the transport.

        Args:
            group: Group of all ranks that plans number, in the same order.
            device: Device of all tensors.
            dtype: Data type of all tensors.
        """
        self._group = group
        self._device = device
        self._dtype = dtype
        self._sends: dict[_Key, Work] = {}
        self._receives: dict[_Key, tuple[Work, Tensor]] = {}
        self._slots: dict[int, Tensor] = {}

    def connect(self, peers: Iterable[int]) -> None:
        """Exchanges a number with peers, because the first transfer of a pair is slow.

        Args:
            peers: Peers of this rank, in an order in which all ranks together can go through
                theirs without a deadlock. Peers are mutual.
        """
        for peer in peers:
            number = torch.zeros(1, dtype=self._dtype, device=self._device)
            is_first = self._group.rank() < peer
            transfer = self._group.send if is_first else self._group.recv
            _wait(transfer([number], peer, 0))

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Starts sending a contiguous tensor, which must not change until `wait_send`."""
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
            TransportError: The transfer failed, as when the peer is gone.
        """
        work, tensor = self._receives.pop((microbatch, payload))
        _wait(work)
        return tensor

    def _buffer(self, slot: int, n_numbers: int) -> Tensor:
        """The first `n_numbers` numbers of a receive buffer, which grows on demand."""
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
