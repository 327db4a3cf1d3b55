"""Transfers and collectives over MPI: of CPU tensors, and of tensors on a GPU that ranks share.

NCCL refuses two ranks on one device. Such a job runs nevertheless: its tensors travel through host
memory, and the host waits for the device in every transfer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch import Tensor

from dynapipe_hpc.executor.transport.buffers import Buffers
from dynapipe_hpc.executor.transport.transport import Place, TransportError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import done

CPU = torch.device("cpu")
MAX_NUMBERS = 1 << 30
"""Maximum count of numbers in one MPI call: many libraries count in 32 bits."""

# Only types that MPI can add: it would treat the bits of a bfloat16 as an integer.
_SUMMABLE = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}
# By size in bytes, for copies: MPI has no name for some dtypes of torch.
_MOVED = {
    1: (torch.uint8, MPI.UINT8_T),
    2: (torch.int16, MPI.UINT16_T),
    4: (torch.int32, MPI.UINT32_T),
    8: (torch.int64, MPI.UINT64_T),
}


def summable(values: Tensor) -> list[Any]:
    """An MPI buffer of numbers to add; raises `TypeError` if MPI cannot add that type."""
    mpi_type = _SUMMABLE.get(values.dtype)
    if mpi_type is None:
        known = ", ".join(str(dtype) for dtype in _SUMMABLE)
        raise TypeError(f"MPI cannot add {values.dtype}; convert to one of {known}")
    return [values.numpy(), mpi_type]


def movable(values: Tensor) -> list[Any]:
    """An MPI buffer of numbers to copy, of any type."""
    dtype, mpi_type = _MOVED[values.element_size()]
    return [values.view(-1).view(dtype).numpy(), mpi_type]


def to_host(values: Tensor) -> Tensor:
    """The tensor in host memory; the same tensor if it is already there."""
    return values.to(CPU)


@contextmanager
def on_host(values: Tensor) -> Iterator[Tensor]:
    """Block with a tensor in host memory; if that is a copy, it is copied back at the end."""
    held = to_host(values)
    yield held
    if held is not values:
        values.copy_(held)


def pieces(values: Tensor) -> Iterator[Tensor]:
    """Parts of a contiguous tensor, each small enough for one call."""
    flat = values.view(-1)
    for start in range(0, len(flat), MAX_NUMBERS):
        yield flat[start : start + MAX_NUMBERS]


class _PendingReceive(NamedTuple):
    request: MPI.Request
    peer: int
    tensor: Tensor


class MpiTransport:
    """A rank's `Transport` over an MPI communicator.

    MPI matches the messages of a pair of ranks in the order of sends and receives. A message's tag
    names its payload and micro-batch. Receives accept any tag and compare it, so that a
    disagreement is an error and not a hang. Waiting releases the interpreter lock.
    """

    def __init__(
        self, comm: MPI.Intracomm, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Opens the transport; called by all ranks together. Plans use the rank numbers of `comm`.

        `device`: GPU to which received tensors are copied; None to leave them in host memory.
        """
        self._device = device
        self._comm = comm.Dup()
        self._sends: dict[int, tuple[MPI.Request, Tensor]] = {}
        self._receives: dict[int, _PendingReceive] = {}
        self._slots = Buffers(dtype)

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        tag, tensor = _tag(microbatch, payload), to_host(tensor)
        self._sends[tag] = (self._comm.Isend(movable(tensor), dest=peer, tag=tag), tensor)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        request, _ = self._sends.pop(_tag(microbatch, payload))
        request.Wait()

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        tensor = self._slots.take(slot, shape)
        request = self._comm.Irecv(movable(tensor), source=peer, tag=MPI.ANY_TAG)
        self._receives[_tag(microbatch, payload)] = _PendingReceive(request, peer, tensor)

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits; raises `TransportError` if the message that arrived is not the expected one."""
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
        tensor = receive.tensor
        return tensor if self._device is None else tensor.to(self._device, copy=True)

    def clear(self) -> None:
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


class MpiCollectives(Place):
    """A rank's `Collectives` over an MPI communicator.

    Sums raise `TypeError` if MPI cannot add numbers of that type. MPI makes progress only inside
    its calls, so sums cannot overlap computation.
    """

    sums_beside_work = False

    def __init__(self, comm: MPI.Intracomm, cluster: Cluster) -> None:
        """Splits `comm`, which has all ranks of the cluster; called by all ranks together."""
        rank = comm.Get_rank()
        super().__init__(cluster, rank)
        stage_and_shard = self.stage * cluster.n_shards + self.shard
        self._replicas = comm.Split(color=stage_and_shard, key=rank)
        self._shards = comm.Split(color=cluster.plan_of(rank), key=rank)
        self._same_replica = comm.Split(color=self.replica, key=rank)
        self._stages = MPI.Intracomm(self._same_replica.Split(color=self.shard, key=self.stage))
        self._holders: dict[tuple[int, ...], MPI.Intracomm] = {}

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        _sum_everywhere(self._replicas, values)

    def start_sum_over_replicas(self, values: torch.Tensor) -> Callable[[], None]:
        self.sum_over_replicas(values)
        return done

    def sum_share_over_replicas(self, values: torch.Tensor) -> None:
        with on_host(values) as held:
            shares = held.view(self.n_replicas, -1)
            _sum_share(self._replicas, shares, into=shares[self.replica])

    def gather_shares(self, values: torch.Tensor) -> None:
        with on_host(values) as held:
            _gather_shares(self._replicas, held.view(self.n_replicas, -1))

    def sum_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(values.dtype, torch.float32)
        shard = to_host(values).to(wide).contiguous()
        total = torch.empty_like(shard)
        for mine, sums in zip(pieces(shard), pieces(total), strict=True):
            self._shards.Allreduce(summable(mine), summable(sums))
        return total.to(values.device, values.dtype)

    def sum_own_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(values.dtype, torch.float32)
        parts = to_host(values).to(wide).contiguous()
        shard = torch.empty_like(parts.chunk(self.n_shards)[0])
        _sum_share(self._shards, parts.view(self.n_shards, -1), into=shard.view(-1))
        return shard.to(values.device, values.dtype)

    def gather_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        parts = values.new_empty((self.n_shards, *values.shape), device=CPU)
        parts[self.shard] = values
        _gather_shares(self._shards, parts.view(self.n_shards, -1))
        return parts.flatten(0, 1).to(values.device)

    def sum_within_replica(self, values: torch.Tensor) -> None:
        _sum_everywhere(self._same_replica, values)

    def sum_over_copies(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        holders = self._holders_of(stages)
        with on_host(values) as held:
            for piece in pieces(held):
                if holders.Get_rank() == 0:
                    holders.Reduce(MPI.IN_PLACE, summable(piece), root=0)
                else:
                    holders.Reduce(summable(piece), None, root=0)

    def copy_from_first(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        with on_host(values) as held:
            for piece in pieces(held):
                self._holders_of(stages).Bcast(movable(piece), root=0)

    def close(self) -> None:
        """Frees the communicators; called by all ranks together."""
        # All ranks free them in the same order, even if they opened them in different orders.
        holders = [comm for _, comm in sorted(self._holders.items())]
        groups = (self._stages, self._same_replica, self._shards, self._replicas)
        for comm in (*holders, *groups):
            comm.Free()

    def _holders_of(self, stages: Sequence[int]) -> MPI.Intracomm:
        """Communicator of some stages of this replica and shard; called by all these together."""
        key = tuple(stages)
        if key not in self._holders:
            group = self._stages.Get_group().Incl(key)
            self._holders[key] = self._stages.Create_group(group)
            group.Free()
        return self._holders[key]


def _sum_share(comm: MPI.Comm, shares: torch.Tensor, into: torch.Tensor) -> None:
    """Sums the share of this rank, row by row of `shares`, over all ranks."""
    n_most = max(1, MAX_NUMBERS // len(shares))
    for start in range(0, shares.shape[1], n_most):
        part = shares[:, start : start + n_most].contiguous()
        total = torch.empty_like(part[0])
        comm.Reduce_scatter_block(summable(part), summable(total))
        into[start : start + n_most].copy_(total)


def _gather_shares(comm: MPI.Comm, shares: torch.Tensor) -> None:
    if shares.numel() <= MAX_NUMBERS:
        comm.Allgather(MPI.IN_PLACE, movable(shares))
        return
    for rank, share in enumerate(shares):
        for piece in pieces(share):
            comm.Bcast(movable(piece), root=rank)


def _sum_everywhere(comm: MPI.Comm, values: torch.Tensor) -> None:
    with on_host(values) as held:
        for piece in pieces(held):
            comm.Allreduce(MPI.IN_PLACE, summable(piece))
