"""Point-to-point transfers over torch.distributed: NCCL between GPUs, gloo otherwise."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from dynapipe_hpc.executor.transport.buffers import Buffers
from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload

_Key = tuple[int, Payload]


class _Send(NamedTuple):
    work: Work
    buffer: int


class _Receive(NamedTuple):
    work: Work
    tensor: Tensor


class TorchTransport:
    """A rank's `Transport` over process groups of torch.distributed, one per payload.

    Messages of a pair match in the order in which each side starts them, and plans make sure that
    this order is the same on both sides. NCCL needs that for each group, in which a pair has one
    stream. The stream starts after what was launched before, so a tensor is sent when
    it has been computed, and a slot is received into when it has been read. Waiting makes the
    compute stream wait on the device; with gloo, which has no streams, this thread waits.

    Tensors are sent from buffers of the transport. The allocator cannot reuse the memory of a
    tensor that was sent until the host sees that the stream has got there, which may be an
    iteration later; a buffer is reused in the order of the streams.

    Unlike MPI messages, these carry no tag. Ranks that disagree on a size hang or end, so plans
    are compared before they are executed.
    """

    def __init__(
        self, groups: Mapping[Payload, ProcessGroup], device: torch.device, dtype: torch.dtype
    ) -> None:
        """Opens the transport."""
        self._groups = groups
        self._sends: dict[_Key, _Send] = {}
        self._receives: dict[_Key, _Receive] = {}
        self._slots = Buffers(dtype, device)
        self._sent = Buffers(dtype, device)

    @property
    def buffer_bytes(self) -> int:
        """Size of all buffers in bytes."""
        return self._slots.n_bytes + self._sent.n_bytes

    def connect(self, peers: Iterable[int]) -> None:
        """Exchanges numbers with peers, because the first transfer of a pair is slow.

        It also takes memory, for each group and direction. Activations go to higher ranks and
        gradients to lower ones.

        Args:
            peers: Peers of this rank, in an order in which all ranks together can go through
                theirs without a deadlock. Peers are mutual.
        """
        for peer in peers:
            for payload, group in self._groups.items():
                number = self._slots.take(0, (1,)).zero_()
                goes_up = payload is Payload.ACTIVATION
                is_sender = (group.rank() < peer) == goes_up
                transfer = group.send if is_sender else group.recv
                _wait(transfer([number], peer, 0))
        self.clear()

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Starts sending a copy of a contiguous tensor."""
        in_use = {send.buffer for send in self._sends.values()}
        number = next(n for n in count() if n not in in_use)
        copy = self._sent.take(number, tuple(tensor.shape)).copy_(tensor)
        self._sends[microbatch, payload] = _Send(
            self._groups[payload].send([copy], peer, 0), number
        )

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        """Waits until a send no longer needs its buffer."""
        _wait(self._sends.pop((microbatch, payload)).work)

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        """Starts receiving into receive buffer `slot`."""
        tensor = self._slots.take(slot, shape)
        work = self._groups[payload].recv([tensor], peer, 0)
        self._receives[microbatch, payload] = _Receive(work, tensor)

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits for a tensor; it stays valid until its slot is received into again.

        Raises:
            TransportError: The transfer failed, as when the peer is gone.
        """
        work, tensor = self._receives.pop((microbatch, payload))
        _wait(work)
        return tensor

    def clear(self) -> None:
        """Frees all buffers; torch's allocator keeps the memory for what comes next."""
        self._slots.clear()
        self._sent.clear()


def _wait(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise TransportError(f"a transfer failed: {error}") from error
