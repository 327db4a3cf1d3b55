"""The plan store of an MPI job, over rings in the memory of its hosts."""

import atexit
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.store.config import ProgressChoice
from dynapipe_hpc.store.plan_store import (
    PlannerTurns,
    damaged_plan_error,
    no_plan_error,
    no_room_error,
    planner_failed_error,
    too_large_error,
)
from dynapipe_hpc.store.ring_layout import (
    HEADER,
    WORD,
    Hosts,
    Memory,
    Message,
    MessageKind,
    Outbox,
    RingLayout,
)

# Any pause takes longer than this, and so does a time slice on a busy core.
_WITHOUT_PAUSE_S = 50e-6
_MAX_PAUSE_S = 2e-3


def poll(
    ready: Callable[[], bool],
    share: float,
    timeout_s: float = math.inf,
    longest_pause_s: float = _MAX_PAUSE_S,
) -> bool:
    """Calls `ready` until it returns True; returns whether it did so within `timeout_s`.

    After the first 50 us it sleeps between calls, so that it never occupies the core that the
    awaited process needs. It sleeps for a `share` of the time waited so far, at most
    `longest_pause_s`, in addition to the 60 us or so that the shortest sleep takes. Pauses should
    be short if `ready` enters MPI, as these calls may be what moves a transfer along.
    """
    start_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            return False
        if waited_s > _WITHOUT_PAUSE_S:
            time.sleep(min(share * waited_s, longest_pause_s))
    return True


class HostMemory:
    """Memory that the ranks of a host load from and store to, without a blocking call of MPI.

    Every rank owns a part of it. A rank that sees one write of another rank also sees all earlier
    writes of that rank.
    """

    def __init__(self, comm: MPI.Intracomm, n_bytes: int) -> None:
        """Opens `n_bytes` of arbitrary content on each rank of `comm`, which `close` frees."""
        self.comm = comm
        self._window = MPI.Win.Allocate_shared(n_bytes, 1, comm=comm)
        check_unified(self._window)
        self._window.Lock_all(MPI.MODE_NOCHECK)  # without an epoch, `Sync` would be an error
        self._parts = [_part_of(self._window, owner) for owner in range(comm.Get_size())]

    def part(self, owner: int) -> memoryview:
        return self._parts[owner]

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        self._window.Sync()
        return bytes(self._parts[owner][offset : offset + n_bytes])

    def write(self, owner: int, offset: int, message: bytes) -> None:
        self._parts[owner][offset : offset + len(message)] = message
        self._window.Sync()

    def close(self) -> None:
        """Releases the memory; the ranks of the host together."""
        self._parts.clear()  # views of the window, which must be gone before it is freed
        self._window.Unlock_all()
        self._window.Free()
        self.comm.Free()


def check_unified(window: MPI.Win) -> None:
    """Raises `RunError` unless loads see the writes of other ranks without an update."""
    if window.model != MPI.WIN_UNIFIED:
        raise RunError(
            "this MPI library keeps a second copy of memory that ranks share (its model of MPI "
            "windows is not MPI_WIN_UNIFIED); use another library, or another of its one-sided "
            "components (Open MPI: OMPI_MCA_osc)"
        )


def _part_of(window: MPI.Win, owner: int) -> memoryview:
    memory: Any = window.Shared_query(owner)[0]
    return memoryview(memory).cast("B")


_HINTS = {"same_disp_unit": "true"}
# Counts of MPI are C ints unless the library has the large counts of MPI 4.
_BLOCK_BYTES = 1 << 30
_SHARE_OF_WAIT = 1e-2


class MpiMemory:
    """A passive-target MPI window: the owner of the memory takes no part in an access.

    The access epoch lasts as long as the MPI window, and takes no lock: readers know from the
    content whose turn it is. Each access is complete when its method returns. It is started with a
    request that is tested between pauses, since a call that waits inside MPI would occupy the core
    that the owner may need to answer; the flush that MPI requires afterwards finds nothing left to
    wait for. Threads may share the object.
    """

    def __init__(self, comm: MPI.Intracomm, memory: memoryview | None) -> None:
        """Opens `memory` of this rank, if it has any; called by all ranks of `comm` together.

        It frees `comm`. Raises `RunError` if the owner's loads would not see other ranks' writes.
        """
        self._comm = comm
        info = MPI.Info.Create(_HINTS)
        self._window = MPI.Win.Create(memory, 1, info, comm)
        info.Free()
        check_unified(self._window)
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        data = np.empty(n_bytes, np.uint8)
        for start in range(0, n_bytes, _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            self._wait(self._window.Rget(block, owner, offset + start), owner)
        return data.tobytes()

    def write(self, owner: int, offset: int, message: bytes) -> None:
        whole = memoryview(message)
        for start in range(0, len(message), _BLOCK_BYTES):
            block = whole[start : start + _BLOCK_BYTES]
            self._wait(self._window.Rput(block, owner, offset + start), owner)

    def enter_mpi(self) -> None:
        """Gives MPI time to answer other ranks."""
        self._comm.Iprobe()

    def close(self) -> None:
        """Releases the memory; called by all ranks together."""
        self._comm.Barrier()  # no rank accesses the memory any more
        self._window.Unlock_all()
        self._window.Free()
        self._comm.Free()

    def _wait(self, request: MPI.Request, owner: int) -> None:
        poll(request.Test, _SHARE_OF_WAIT)
        self._window.Flush(owner)


_PAUSE_S = 0.2e-3
# The thread needs the interpreter lock twice per answer. A thread that runs pure Python keeps the
# lock for this long, 5 ms by default.
_SWITCH_INTERVAL_S = 0.5e-3


@dataclass(frozen=True, slots=True)
class AccessProgress:
    """Mechanism that answers accesses to a leader's memory, and the reason for it.

    rma: the MPI library and the network on their own; thread: a thread of the memory's owner.
    """

    mechanism: Literal["rma", "thread"]
    reason: str

    def __str__(self) -> str:
        helped = {"rma": "", "thread": " with a progress thread per host"}
        return f"plan store: one-sided access{helped[self.mechanism]} ({self.reason})"


class ProgressThread:
    """A thread that enters MPI every 0.2 ms, which lets MPI answer other ranks.

    It takes a few percent of a core, and makes threads that run pure Python hand over the
    interpreter lock after 0.5 ms instead of 5.
    """

    def __init__(self, enter_mpi: Callable[[], object]) -> None:
        """Starts calling `enter_mpi`."""
        self._enter_mpi = enter_mpi
        self._stopped = threading.Event()
        self._old_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()
        # A job that ends early does not close the store, but the thread must end before MPI does.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the calls; may be called more than once."""
        atexit.unregister(self.stop)
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            sys.setswitchinterval(self._old_interval_s)

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            self._enter_mpi()


# A busy machine delays some accesses; if MPI waits for the owner, it delays all of them.
_QUIET_MS = (4.0, 8.0, 16.0)
_MAX_OWNERS = 4

Access = Callable[[int], object]


def choose_progress(comm: MPI.Intracomm, owners: Sequence[int], access: Access) -> AccessProgress:
    """The progress mechanism that MPI needs, tried out by all ranks together in less than 50 ms.

    `access` accesses a rank's memory in every way that this rank will use. At most four `owners`,
    evenly spread, are tried.
    """
    longest_ms = 0.0
    for owner in owners[:: -(-len(owners) // _MAX_OWNERS)]:
        waited_ms = _shortest_wait_ms(comm, owner, access)
        if waited_ms is None:
            return AccessProgress("thread", f"rank {owner} did not answer while it computed")
        longest_ms = max(longest_ms, waited_ms)
    return AccessProgress("rma", f"ranks that computed answered within {longest_ms:.2g} ms")


def _shortest_wait_ms(comm: MPI.Intracomm, owner: int, access: Access) -> float | None:
    for quiet_ms in _QUIET_MS:
        waited_ms = wait_for_quiet(comm, owner, access, partial(time.sleep, 1e-3 * quiet_ms))
        if waited_ms < quiet_ms / 2:
            return waited_ms
    return None


def wait_for_quiet(
    comm: MPI.Intracomm, owner: int, access: Access, be_quiet: Callable[[], object]
) -> float:
    """Time in ms of two accesses to a rank's memory while it calls no MPI, on the slowest rank.

    Called by all ranks together; all except the owner access its memory.
    """
    # A rank that has received this knows that the owner has sent it. The owner may still be inside
    # MPI during the first of two accesses.
    comm.Bcast(np.zeros(1, np.int64), owner)
    started_s = time.perf_counter()
    if comm.Get_rank() == owner:
        be_quiet()
        return float(comm.allreduce(0.0, MPI.MAX))
    access(owner)
    access(owner)
    return float(comm.allreduce(1e3 * (time.perf_counter() - started_s), MPI.MAX))


class FarRings:
    """Memory of the leaders of all hosts, for planners; nothing is opened if there is one host.

    Only leaders and planners take part, so the cost of opening it does not grow with the ranks of a
    host. `progress` is what answers accesses, the same on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        hosts: Hosts,
        planners: list[int],
        near: HostMemory,
        *,
        choice: ProgressChoice,
    ) -> None:
        """Opens the rings over `near`, whose leader's part is a ring; all ranks together."""
        self._hosts, self._rank, self._planners = hosts, comm.Get_rank(), planners
        self._members = sorted({*hosts.ranks_of, *planners})
        self._memory: MpiMemory | None = None
        self._thread: ProgressThread | None = None
        if len(hosts.ranks_of) == 1:
            self.progress = AccessProgress("rma", "one host, whose ranks share memory")
            return
        is_leader = hosts.leader_of[self._rank] == self._rank
        is_member = self._rank in self._members
        # All ranks split, though only members open the window: a split is collective over the job.
        among = MPI.Intracomm(comm.Split(0 if is_member else MPI.UNDEFINED, self._rank))
        progress = None
        if is_member:
            self._memory = MpiMemory(among, near.part(0) if is_leader else None)
            progress = self._choose(among, choice)
        # The leader, rank 0 on its host, is a member and tells the choice to other ranks.
        self.progress = near.comm.bcast(progress)
        if is_leader and self._memory and self.progress.mechanism == "thread":
            self._thread = ProgressThread(self._memory.enter_mpi)

    def find(self, leader: int) -> tuple[MpiMemory, int]:
        """The memory with the ring of a leader's host, and its owner's rank in it, for planners."""
        if self._memory is None:
            raise ValueError(f"rank {self._rank} does not plan for another host")
        return self._memory, self._members.index(leader)

    def answer(self) -> None:
        """Called by a leader that waits: MPI answers planners in its calls, not during loads."""
        if self._memory is not None and self._thread is None:
            self._memory.enter_mpi()

    def close(self) -> None:
        """Releases the memory; called by all ranks together when no thread uses it."""
        if self._thread is not None:
            self._thread.stop()  # it calls MPI on the window, which is freed next
        if self._memory is not None:
            self._memory.close()

    def _choose(self, among: MPI.Intracomm, choice: ProgressChoice) -> AccessProgress:
        if choice != "auto":
            return AccessProgress(choice, f"store.progress = '{choice}'")
        owners = [self._members.index(leader) for leader in self._hosts.ranks_of]
        return choose_progress(among, owners, self._try_access)

    def _try_access(self, owner: int) -> None:
        leader_here = self._hosts.leader_of[self._rank]
        if self._memory and self._rank in self._planners and self._members[owner] != leader_here:
            self._memory.read(owner, 0, WORD.size)
            self._memory.write(owner, 0, WORD.pack(0))


# A rank that waits for a plan is idle, but waiting for room happens in the background.
_SHARE_OF_WAIT_FOR_PLAN = 0.2e-3
_SHARE_OF_WAIT_FOR_ROOM = 0.1
# Each look takes the core and the interpreter lock from a rank that computes.
_MAX_PAUSE_FOR_ROOM_S = 50e-3


class MpiPlanStore:
    """A plan store in which plans wait on the host of the ranks that execute them.

    The ranks of a host share a ring of entries, in the memory of the first of them, their leader. A
    planner writes the plans of all ranks of a host together: into the shared memory of its own
    host, and by one-sided MPI into other hosts' memory. An executing rank only loads and stores.
    No rank waits for another to call MPI: if the network needs that, a thread of the leader does
    it.

    In a process, one thread at a time may put (or fail) and one may take: the planning thread and
    the executing thread.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        capacity: int,
        plan_bytes: int,
        *,
        first_iteration: int = 0,
        progress: ProgressChoice = "auto",
        host: int = 0,
    ) -> None:
        """Opens the store; called by all ranks of `comm` together.

        `plan_bytes` bounds the plan of one rank; ranks with different `host` numbers count as
        on different hosts. Raises `RunError` on all ranks if MPI windows lack what the store needs.
        """
        self._turns = PlannerTurns(comm.Get_size(), capacity, first_iteration)
        self._plan_bytes = plan_bytes
        self._rank = comm.Get_rank()
        self._next_take = first_iteration
        # From here to the outboxes every line is collective, in the same order on all ranks.
        on_host = _ranks_of_host(comm, host)
        self._hosts = Hosts(_leaders(comm, on_host))
        self._leader = self._hosts.leader_of[self._rank]
        self._layout = self._layout_of(self._leader)
        self._near = self._open_ring(on_host)
        planners = self._turns.planners
        self._far = FarRings(comm, self._hosts, planners, self._near, choice=progress)
        leaders = self._hosts.ranks_of if self._rank in planners else ()
        self._outboxes = {leader: self._outbox(leader) for leader in leaders}

    @property
    def progress(self) -> AccessProgress:
        """Mechanism that answers accesses of other hosts, and the reason for it."""
        return self._far.progress

    @property
    def capacity(self) -> int:
        return self._turns.capacity

    def planner_of(self, iteration: int) -> int:
        return self._turns.planner_of(iteration)

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        """Stores the plan of a rank; see `PlanStore`. Only the iteration's planner may call it.

        The ranks of a host get their plans when the last of these plans has been put.
        """
        if len(plan) > self._plan_bytes:
            raise too_large_error(iteration, rank, len(plan), self._plan_bytes)
        self._publish(iteration, rank, (MessageKind.PLAN, plan), timeout_s)

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        """Stores a failure in place of a plan; see `PlanStore`. A long reason is cut."""
        message = reason.encode()[: self._plan_bytes]
        self._publish(iteration, rank, (MessageKind.FAILURE, message), timeout_s)

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        if not poll(lambda: self._has_come(iteration), _SHARE_OF_WAIT_FOR_PLAN, timeout_s):
            raise no_plan_error(self._turns, iteration, rank, timeout_s)
        kind, message = self._receive(iteration)
        if kind is MessageKind.FAILURE:
            reason = message.decode(errors="ignore")
            raise planner_failed_error(iteration, self.planner_of(iteration), reason)
        return message

    def plans_ahead(self, rank: int) -> int:  # noqa: ARG002 - each rank asks of its own
        first = iteration = self._next_take
        while iteration < first + self.capacity and self._is_ready(iteration):
            iteration += 1
        return iteration - first

    def close(self) -> None:
        """Releases the memory; called by all ranks together when no thread uses the store."""
        self._far.close()  # first: its windows are over the memory of the near rings
        self._near.close()

    def _layout_of(self, leader: int) -> RingLayout:
        n_ranks = len(self._hosts.ranks_of[leader])
        return RingLayout(n_ranks, self._turns.capacity, self._plan_bytes)

    def _open_ring(self, on_host: MPI.Intracomm) -> HostMemory:
        is_leader = self._rank == self._leader
        ring = HostMemory(on_host, self._layout.ring_bytes if is_leader else 0)
        if is_leader:
            for offset in self._layout.counts:
                ring.write(0, offset, WORD.pack(0))
        on_host.Barrier()  # no rank reads a count that the leader has not yet set to 0
        return ring

    def _outbox(self, leader: int) -> Outbox:
        near: tuple[Memory, int] = (self._near, 0)
        memory, owner = near if leader == self._leader else self._far.find(leader)
        return Outbox(memory, owner, self._layout_of(leader))

    def _publish(self, iteration: int, rank: int, message: Message, timeout_s: float) -> None:
        outbox = self._outboxes[self._hosts.leader_of[rank]]
        place, number = self._hosts.place_of[rank], self._number(iteration)
        if not poll(
            lambda: outbox.has_room(place, number),
            _SHARE_OF_WAIT_FOR_ROOM,
            timeout_s,
            _MAX_PAUSE_FOR_ROOM_S,
        ):
            raise no_room_error(self._turns, iteration, rank, timeout_s)
        # No rank of the host sees it before the message of the last of them is added.
        outbox.add(place, number, message)

    def _receive(self, iteration: int) -> tuple[MessageKind, bytes]:
        number, place = self._number(iteration), self._hosts.place_of[self._rank]
        header = self._near.read(0, self._layout.header(number, place), HEADER.size)
        location = self._layout.find(number, header)
        if location is None:
            raise damaged_plan_error(iteration, self._rank, self.planner_of(iteration))
        kind, offset, n_bytes = location
        message = self._near.read(0, offset, n_bytes)
        # After the copy: the planner may overwrite the entry as soon as all ranks have taken it.
        self._near.write(0, self._layout.n_taken(place), WORD.pack(number + 1))
        self._next_take += 1
        return kind, message

    def _has_come(self, iteration: int) -> bool:
        if self._is_ready(iteration):
            return True
        self._far.answer()
        return False

    def _is_ready(self, iteration: int) -> bool:
        number = self._number(iteration)
        # The comparison is right even if a word is not written at once.
        return self._near.read(0, self._layout.n_put(number), WORD.size) == WORD.pack(number + 1)

    def _number(self, iteration: int) -> int:
        return iteration - self._turns.first


def _ranks_of_host(comm: MPI.Intracomm, host: int) -> MPI.Intracomm:
    sharing = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    on_host = MPI.Intracomm(sharing.Split(host, comm.Get_rank()))
    sharing.Free()
    return on_host


def _leaders(comm: MPI.Intracomm, on_host: MPI.Intracomm) -> tuple[int, ...]:
    leader = on_host.bcast(comm.Get_rank())
    leaders = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([leader], np.int64), leaders)
    return tuple(leaders.tolist())
