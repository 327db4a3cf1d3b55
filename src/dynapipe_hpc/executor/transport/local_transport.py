"""Transfers between threads of one process, as strict as NCCL but with clearer errors."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dynapipe_hpc.executor.transport.local_world import LocalWorld
from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload


class Array(Protocol):
    """An array of floating-point numbers: a numpy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        ...

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Assigns values to a part of the array."""
        ...


ArrayT = TypeVar("ArrayT", bound=Array)


@dataclass(slots=True, eq=False)
class _Transfer(Generic[ArrayT]):
    """One side of a transfer."""

    rank: int
    is_send: bool
    microbatch: int
    payload: Payload
    array: ArrayT
    is_done: bool = False

    def __str__(self) -> str:
        verb = "sends" if self.is_send else "receives"
        shape = tuple(self.array.shape)
        return f"rank {self.rank} {verb} {self.payload.name.lower()} {self.microbatch} {shape}"


class LocalNetwork(Generic[ArrayT]):
    """Network of ranks: the k-th transfer on one side of a pair matches the k-th on the other."""

    def __init__(
        self,
        world: LocalWorld,
        allocate: Callable[[tuple[int, ...]], ArrayT],
        members: Sequence[int] | None = None,
    ) -> None:
        """Connects some ranks of `world`, or all."""
        self.world = world
        self.allocate = allocate
        self.members = range(world.n_ranks) if members is None else members
        self._unmatched: dict[tuple[int, int], deque[_Transfer[ArrayT]]] = {}
        self._n_matched: dict[frozenset[int], int] = {}

    def transport(self, rank: int) -> "LocalTransport[ArrayT]":
        """The transport of a rank."""
        return LocalTransport(self, rank)

    def start(self, transfer: _Transfer[ArrayT], peer: int) -> None:
        """Matches a transfer, or leaves it for the peer to match.

        Raises:
            TransportError: The two sides disagree; both get the error.
        """
        with self.world.changing():
            waiting = self._unmatched.get((peer, transfer.rank))
            if waiting:
                self._match(waiting.popleft(), transfer)
            else:
                unmatched = self._unmatched.setdefault((transfer.rank, peer), deque())
                unmatched.append(transfer)

    def _match(self, early: _Transfer[ArrayT], late: _Transfer[ArrayT]) -> None:
        pair = frozenset((early.rank, late.rank))
        number = self._n_matched[pair] = self._n_matched.get(pair, -1) + 1
        if not _agree(early, late):
            raise TransportError(
                f"ranks {early.rank} and {late.rank} disagree on transfer {number} between "
                f"them: {early}, {late}"
            )
        source, target = (early, late) if early.is_send else (late, early)
        target.array[...] = source.array
        early.is_done = late.is_done = True


def _agree(one: _Transfer[ArrayT], other: _Transfer[ArrayT]) -> bool:
    return (
        one.is_send != other.is_send
        and (one.microbatch, one.payload) == (other.microbatch, other.payload)
        and tuple(one.array.shape) == tuple(other.array.shape)
    )


class LocalTransport(Generic[ArrayT]):
    """A rank's `Transport` in a `LocalNetwork`.

    The old content of a receive buffer becomes NaN when it is received into again, so that code
    which still relies on it is detected.
    """

    def __init__(self, network: LocalNetwork[ArrayT], rank: int) -> None:
        """Joins the network as `rank`."""
        self._network = network
        self._rank = rank
        self._started: dict[tuple[bool, int, Payload], _Transfer[ArrayT]] = {}
        self._slots: dict[int, ArrayT] = {}

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: ArrayT) -> None:
        """Starts sending; the array is read when the peer starts receiving."""
        self._start(_Transfer(self._rank, True, microbatch, payload, tensor), peer)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        """Waits until the peer has the array."""
        self._wait(True, microbatch, payload)

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        """Starts receiving into a buffer."""
        if slot in self._slots:
            self._slots[slot][...] = math.nan
        buffer = self._slots[slot] = self._network.allocate(shape)
        self._start(_Transfer(self._rank, False, microbatch, payload, buffer), peer)

    def wait_receive(self, microbatch: int, payload: Payload) -> ArrayT:
        """Waits for an array."""
        return self._wait(False, microbatch, payload)

    def clear(self) -> None:
        """Frees all receive buffers."""
        self._slots.clear()

    def _start(self, transfer: _Transfer[ArrayT], peer: int) -> None:
        key = (transfer.is_send, transfer.microbatch, transfer.payload)
        if key in self._started:
            raise TransportError(f"{transfer}, which it started before and did not wait for")
        self._started[key] = transfer
        self._network.start(transfer, peer)

    def _wait(self, is_send: bool, microbatch: int, payload: Payload) -> ArrayT:
        transfer = self._started.pop((is_send, microbatch, payload), None)
        if transfer is None:
            verb = "send" if is_send else "receive"
            raise TransportError(
                f"rank {self._rank} waits for {verb} of {payload.name.lower()} {microbatch}, "
                "which it did not start"
            )
        what = f"what it started: {transfer}"
        waiting = self._network.members[self._rank]
        self._network.world.wait_until(waiting, lambda: transfer.is_done, what)
        return transfer.array
