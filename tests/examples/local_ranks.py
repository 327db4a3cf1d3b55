"""Ranks as threads of one process, with deadlock detection: their transfers and collectives."""

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import done

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Wait:
    is_over: Callable[[], bool]
    what: str


class LocalWorld:
    """Ranks that share memory; shared state changes under one lock."""

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self._changed = threading.Condition()
        self._at_work = set(range(n_ranks))
        self._waits: dict[int, _Wait] = {}
        self._failure: str | None = None

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Calls `work(rank)` for all ranks concurrently, and returns the results by rank."""
        failures: list[Exception] = []

        def work_of(rank: int) -> Result:
            try:
                return work(rank)
            except Exception as error:
                with self._changed:
                    failures.append(error)
                    self._fail(f"rank {rank} failed: {error}")
                raise
            finally:
                self._leave(rank)

        self._at_work = set(range(self.n_ranks))
        with ThreadPoolExecutor(self.n_ranks) as threads:
            futures = [threads.submit(work_of, rank) for rank in range(self.n_ranks)]
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Locks shared state for a change; an error in the block reaches all ranks."""
        with self._changed:
            self._raise_failure()
            try:
                yield
            except TransportError as error:
                self._fail(str(error))
                raise
            self._changed.notify_all()

    def wait_until(self, rank: int, is_over: Callable[[], bool], what: str) -> None:
        """Waits for shared state to change."""
        with self._changed:
            self._waits[rank] = _Wait(is_over, what)
            self._look_for_deadlock()
            self._changed.wait_for(lambda: is_over() or self._failure is not None)
            del self._waits[rank]
            if not is_over():
                self._raise_failure()

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._at_work.discard(rank)
            self._look_for_deadlock()

    def _look_for_deadlock(self) -> None:
        stuck = [r for r, wait in self._waits.items() if not wait.is_over()]
        if stuck and self._at_work == set(stuck):
            waits = "; ".join(f"rank {r} waits for {self._waits[r].what}" for r in sorted(stuck))
            self._fail(f"deadlock: {waits}")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure)


class Array(Protocol):
    """An array of floating-point numbers: a numpy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


ArrayT = TypeVar("ArrayT", bound=Array)


@dataclass(slots=True, eq=False)
class _Transfer(Generic[ArrayT]):
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
        self.world = world
        self.allocate = allocate
        self.members = range(world.n_ranks) if members is None else members
        self._unmatched: dict[tuple[int, int], deque[_Transfer[ArrayT]]] = {}
        self._n_matched: dict[frozenset[int], int] = {}

    def transport(self, rank: int) -> "LocalTransport[ArrayT]":
        return LocalTransport(self, rank)

    def start(self, transfer: _Transfer[ArrayT], peer: int) -> None:
        """Matches a transfer, or leaves it for the peer to match."""
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
    def __init__(self, network: LocalNetwork[ArrayT], rank: int) -> None:
        self._network = network
        self._rank = rank
        self._started: dict[tuple[bool, int, Payload], _Transfer[ArrayT]] = {}
        self._slots: dict[int, ArrayT] = {}

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: ArrayT) -> None:
        self._start(_Transfer(self._rank, True, microbatch, payload, tensor), peer)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        self._wait(True, microbatch, payload)

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        if slot in self._slots:
            self._slots[slot][...] = math.nan
        buffer = self._slots[slot] = self._network.allocate(shape)
        self._start(_Transfer(self._rank, False, microbatch, payload, buffer), peer)

    def wait_receive(self, microbatch: int, payload: Payload) -> ArrayT:
        return self._wait(False, microbatch, payload)

    def clear(self) -> None:
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


class _Meeting:
    """A group of ranks that exchange values, round by round."""

    def __init__(self, world: LocalWorld, ranks: Sequence[int]) -> None:
        self._world = world
        self._ranks = ranks
        self._n_rounds = dict.fromkeys(ranks, 0)
        self._shown: dict[tuple[int, int], torch.Tensor] = {}  # by round and rank

    def gather(self, rank: int, value: torch.Tensor) -> list[torch.Tensor]:
        """All-gather: the values of all ranks of the group in this round, by rank."""
        number = self._n_rounds[rank]
        self._n_rounds[rank] += 1
        keys = [(number, member) for member in self._ranks]
        with self._world.changing():
            self._shown[number, rank] = value
        what = f"a sum over ranks {list(self._ranks)}"
        self._world.wait_until(rank, lambda: all(key in self._shown for key in keys), what)
        with self._world.changing():  # all are in this round, so none still reads the previous one
            self._shown.pop((number - 1, rank), None)
            return [self._shown[key] for key in keys]


class LocalSums:
    """Process groups of all ranks of a cluster that are threads of one process."""

    def __init__(self, world: LocalWorld, cluster: Cluster) -> None:
        self.cluster = cluster
        ranks, of = range(cluster.n_ranks), cluster
        self.over_replicas: list[_Meeting] = _meetings(
            world, [(of.stage_of(rank), of.shard_of(rank)) for rank in ranks]
        )
        self.over_shards: list[_Meeting] = _meetings(world, [of.plan_of(rank) for rank in ranks])
        self._world = world
        self._holders: dict[tuple[int, ...], _Meeting] = {}
        self.within_replica: list[_Meeting] = _meetings(
            world, [of.replica_of(rank) for rank in ranks]
        )

    def of_ranks(self, ranks: Sequence[int]) -> _Meeting:
        """The group of some ranks, created by the first of them that asks for it."""
        with self._world.changing():
            key = tuple(ranks)
            if key not in self._holders:
                self._holders[key] = _Meeting(self._world, key)
            return self._holders[key]


def _meetings(world: LocalWorld, colours: Sequence[Hashable]) -> list[_Meeting]:
    """The group of every rank, by rank: all ranks of its colour."""
    members = {c: [r for r, other in enumerate(colours) if other == c] for c in set(colours)}
    of_colour: dict[Hashable, _Meeting] = {c: _Meeting(world, m) for c, m in members.items()}
    return [of_colour[colour] for colour in colours]


class LocalCollectives:
    """A rank's `Collectives` in a `LocalWorld`; sums are in rank order."""

    sums_beside_work = True

    def __init__(self, sums: LocalSums, rank: int) -> None:
        self._rank = rank
        self._sums = sums
        self.stage = sums.cluster.stage_of(rank)
        self.n_stages = sums.cluster.n_stages
        self.replica = sums.cluster.replica_of(rank)
        self.n_replicas = sums.cluster.n_replicas
        self.shard = sums.cluster.shard_of(rank)
        self.n_shards = sums.cluster.n_shards
        self.sequence_parallel = sums.cluster.sequence_parallel
        self._over_replicas = sums.over_replicas[rank]
        self._over_shards = sums.over_shards[rank]
        self._within_replica = sums.within_replica[rank]

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        shown = self._over_replicas.gather(self._rank, values.clone())
        values.copy_(torch.stack(shown).sum(dim=0))

    def start_sum_over_replicas(self, values: torch.Tensor) -> Callable[[], None]:
        """All-reduce over replicas that is finished when the call returns."""
        self.sum_over_replicas(values)
        return done

    def sum_share_over_replicas(self, values: torch.Tensor) -> None:
        """Reduce-scatter: replaces this replica's share of `values`, and only it, with its sum."""
        shown = self._over_replicas.gather(self._rank, values.clone())
        total = torch.stack([self._share(each) for each in shown]).sum(dim=0)
        self._share(values).copy_(total)

    def gather_shares(self, values: torch.Tensor) -> None:
        shown = self._over_replicas.gather(self._rank, self._share(values).clone())
        values.copy_(torch.cat(shown))

    def sum_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        shown = self._over_shards.gather(self._rank, values.clone())
        return torch.stack(shown).sum(dim=0, dtype=self._wide(values)).to(values.dtype)

    def sum_own_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        return self.sum_over_shards(values).chunk(self.n_shards)[self.shard].clone()

    def gather_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._over_shards.gather(self._rank, values.clone()))

    def sum_within_replica(self, values: torch.Tensor) -> None:
        """All-reduce: replaces `values` with their sum over the ranks of this replica."""
        shown = self._within_replica.gather(self._rank, values.clone())
        values.copy_(torch.stack(shown).sum(dim=0))

    def sum_over_copies(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Reduce: sums copies of weights on the first stage that holds them."""
        shown = self._holders_of(stages).gather(self._rank, values.clone())
        if self.stage == stages[0]:
            values.copy_(torch.stack(shown).sum(dim=0))

    def copy_from_first(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Broadcast: replaces `values` with the values of the first of `stages`."""
        values.copy_(self._holders_of(stages).gather(self._rank, values.clone())[0])

    def _holders_of(self, stages: Sequence[int]) -> _Meeting:
        rank_of = self._sums.cluster.rank_of
        return self._sums.of_ranks([rank_of(self.replica, s, self.shard) for s in stages])

    def _wide(self, values: torch.Tensor) -> torch.dtype:
        """Type in which shards add numbers up."""
        is_wide = self._sums.cluster.shard_sums == "float32"
        return torch.promote_types(values.dtype, torch.float32) if is_wide else values.dtype

    def _share(self, values: torch.Tensor) -> torch.Tensor:
        return values.view(self.n_replicas, -1)[self.replica]
