"""Point-to-point transfers of CPU tensors over MPI."""

from dataclasses import dataclass

import torch
from mpi4py import MPI
from torch import Tensor

from dynapipe_hpc.executor.transport.buffers import Buffers
from dynapipe_hpc.executor.transport.mpi_buffers import movable
from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload


@dataclass(frozen=True, slots=True, eq=False)
class _PendingReceive:
    request: MPI.Request
    peer: int
    tensor: Tensor


class MpiTransport:
    """A rank's `Transport` over an MPI communicator.

    MPI matches the messages of a pair in the order of sends and receives. The tag of a message
    says what it is. Receives accept any tag and compare it, so that a disagreement is an error and
    not a hang. Waiting releases the interpreter lock.
    """

    def __init__(self, comm: MPI.Intracomm, dtype: torch.dtype) -> None:
        """Opens the transport; called by all ranks of `comm`, whose numbers plans use, together."""
        self._comm = comm.Dup()
        self._sends: dict[int, tuple[MPI.Request, Tensor]] = {}
        self._receives: dict[int, _PendingReceive] = {}
        self._slots = Buffers(dtype)

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Starts sending a contiguous tensor, which must not change until `wait_send`."""
        tag = _tag(microbatch, payload)
        self._sends[tag] = (self._comm.Isend(movable(tensor), dest=peer, tag=tag), tensor)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        """Waits until a send no longer needs its tensor."""
        request, _ = self._sends.pop(_tag(microbatch, payload))
        request.Wait()

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        """Starts receiving into receive buffer `slot`."""
        tensor = self._slots.take(slot, shape)
        request = self._comm.Irecv(movable(tensor), source=peer, tag=MPI.ANY_TAG)
        self._receives[_tag(microbatch, payload)] = _PendingReceive(request, peer, tensor)

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits for a tensor; it stays valid until its slot is received into again.

        Raises:
            TransportError: The message that arrived is not the expected one.
        """
        expected = _tag(microbatch, payload)
        receive = self._receives.pop(expected)
        status = MPI.Status()
        try:
            receive.request.Wait(status)
        except MPI.Exception as error:
            raise TransportError(self._disagreement(expected, receive, str(error))) from error
        _, mpi_type = movable(receive.tensor)
        n_bytes = status.Get_count(mpi_type) * receive.tensor.element_size()
        arrived = f"{_name(status.tag)} of {n_bytes} bytes"
        if arrived != f"{_name(expected)} of {receive.tensor.nbytes} bytes":
            raise TransportError(self._disagreement(expected, receive, arrived))
        return receive.tensor

    def clear(self) -> None:
        """Frees all receive buffers."""
        self._slots.clear()

    def close(self) -> None:
        """Frees the communicator; called by all ranks together when no transfer is left."""
        self._comm.Free()

    def _disagreement(self, expected: int, receive: _PendingReceive, arrived: str) -> str:
        return (
            f"rank {self._comm.Get_rank()} expected {_name(expected)} of "
            f"{receive.tensor.nbytes} bytes from rank {receive.peer}, but got {arrived}"
        )


def _tag(microbatch: int, payload: Payload) -> int:
    return len(Payload) * microbatch + payload


def _name(tag: int) -> str:
    microbatch, payload = divmod(tag, len(Payload))
    return f"{Payload(payload).name.lower()} {microbatch}"
