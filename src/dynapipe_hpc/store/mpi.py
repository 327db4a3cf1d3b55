"""Plan store over one-sided MPI windows."""

from enum import IntEnum

from mpi4py import MPI

from dynapipe_hpc.store import reasons
from dynapipe_hpc.store.config import ProgressChoice
from dynapipe_hpc.store.measure_progress import choose_progress
from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.polling import poll
from dynapipe_hpc.store.progress import Progress, ProgressThread
from dynapipe_hpc.store.ring_layout import HEADER, RingLayout
from dynapipe_hpc.store.turns import Turns

# A rank that waits for a plan is idle, but waiting for room happens in the background.
_LONGEST_PAUSE_FOR_PLAN_S = 0.1e-3
_LONGEST_PAUSE_FOR_ROOM_S = 2e-3


class _Kind(IntEnum):
    PLAN = 0
    FAILURE = 1


class MpiPlanStore:
    """A plan store in which plans stay with the rank that made them until they are taken.

    A planner fills a free entry in its own memory and then raises the count of plans put. The
    executing rank sees that, fetches its bytes and raises the count of plans taken. Each count has
    one writer and is accessed atomically. Neither rank waits for the other to call MPI: if the
    network needs that, a thread of the planner does it.

    In a process, one thread at a time may put (or fail) and one may take: the planning thread and
    the executing thread.

    Attributes:
        progress: Mechanism that answers accesses, and the reason for it.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        capacity: int,
        plan_bytes: int,
        first_iteration: int = 0,
        progress: ProgressChoice = "auto",
    ) -> None:
        """Opens the store; called by all ranks of `comm` together.

        Args:
            comm: Communicator of the ranks of the job.
            capacity: Number of iterations to plan ahead; rounded up as in `Turns.capacity`.
            plan_bytes: Largest plan of one rank, in bytes.
            first_iteration: Number of the iteration that is planned first.
            progress: Choice of the mechanism; see `StoreConfig`.

        Raises:
            PlanStoreError: MPI does not allow several threads to communicate.
        """
        self._turns = Turns(comm.Get_size(), capacity, first_iteration)
        self._layout = RingLayout(self._turns.n_entries, plan_bytes)
        self._rank = comm.Get_rank()
        self._n_put = [0] * self._turns.n_ranks
        self._next_take = first_iteration
        n_rings = self._turns.n_ranks if self._rank in self._turns.planners else 0
        self._memory = MpiMemory(comm, n_rings * self._layout.ring_bytes)
        self._set_counts_to_zero(n_rings)
        self.progress = self._choose_progress(comm, progress)
        needs_thread = self.progress.mechanism == "thread" and n_rings > 0
        self._thread = ProgressThread(self._memory.enter_mpi) if needs_thread else None

    @property
    def capacity(self) -> int:
        """Number of plans of one rank that may wait to be taken."""
        return self._turns.capacity

    def planner_of(self, iteration: int) -> int:
        """The rank that plans an iteration."""
        return self._turns.planner_of(iteration)

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        """Stores the plan of a rank; see `PlanStore`. Only the iteration's planner may call it."""
        limit = self._layout.message_bytes
        if len(plan) > limit:
            raise reasons.too_large(iteration, rank, len(plan), limit)
        self._publish(iteration, rank, _Kind.PLAN, plan, timeout_s)

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        """Stores a failure in place of a plan; see `PlanStore`. A long reason is cut."""
        message = reason.encode()[: self._layout.message_bytes]
        self._publish(iteration, rank, _Kind.FAILURE, message, timeout_s)

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        """Takes the plan of this rank; see `PlanStore`."""
        self._check_reader(rank)
        if iteration != self._next_take:
            raise reasons.out_of_order("take", iteration, rank, self._next_take)
        if not poll(lambda: self._is_ready(iteration), timeout_s, _LONGEST_PAUSE_FOR_PLAN_S):
            n_put = self._read_n_put(iteration)
            raise reasons.no_plan(self._turns, iteration, rank, timeout_s, n_put)
        kind, message = self._receive(iteration)
        if kind is _Kind.FAILURE:
            reason = message.decode(errors="ignore")
            raise reasons.planner_failed(iteration, self.planner_of(iteration), reason)
        return message

    def plans_ahead(self, rank: int) -> int:
        """Number of consecutive plans of this rank that are ready to be taken."""
        self._check_reader(rank)
        first = iteration = self._next_take
        while iteration < first + self.capacity and self._is_ready(iteration):
            iteration += 1
        return iteration - first

    def close(self) -> None:
        """Releases the memory; called by all ranks together when no thread uses the store."""
        if self._thread is not None:
            self._thread.stop()
        self._memory.close()

    def _choose_progress(self, comm: MPI.Intracomm, choice: ProgressChoice) -> Progress:
        if choice != "auto":
            return Progress(choice, f"store.progress = '{choice}'")
        return choose_progress(comm, self._turns.planners, self._try_access)

    def _try_access(self, planner: int) -> None:
        """Accesses a planner's memory as a take does while there is no plan yet."""
        layout, rank = self._layout, self._rank
        self._memory.read_word(planner, layout.n_put(rank))
        self._memory.read(planner, layout.header(rank, 0), HEADER.size)
        self._memory.write_word(planner, layout.n_taken(rank), 0)

    def _set_counts_to_zero(self, n_rings: int) -> None:
        for rank in range(n_rings):
            self._memory.write_word(self._rank, self._layout.n_put(rank), 0)
            self._memory.write_word(self._rank, self._layout.n_taken(rank), 0)
        self._memory.wait_for_all()

    def _publish(
        self, iteration: int, rank: int, kind: _Kind, message: bytes, timeout_s: float
    ) -> None:
        self._check_planner(iteration, rank)
        if not poll(lambda: self._has_room(rank), timeout_s, _LONGEST_PAUSE_FOR_ROOM_S):
            n_taken = self._read_n_taken(rank)
            raise reasons.no_room(self._turns, iteration, rank, timeout_s, n_taken)
        number = self._n_put[rank]
        entry = HEADER.pack(len(message), kind) + message
        self._memory.write(self._rank, self._layout.header(rank, number), entry)
        self._memory.write_word(self._rank, self._layout.n_put(rank), number + 1)
        self._n_put[rank] += 1

    def _receive(self, iteration: int) -> tuple[_Kind, bytes]:
        planner, number = self.planner_of(iteration), self._turns.number_of(iteration)
        layout, rank = self._layout, self._rank
        header = self._memory.read(planner, layout.header(rank, number), HEADER.size)
        n_bytes, kind = HEADER.unpack(header)
        if not 0 <= n_bytes <= layout.message_bytes or kind not in set(_Kind):
            raise reasons.damaged(iteration, rank, planner, n_bytes, layout.message_bytes)
        message = self._memory.read(planner, layout.message(rank, number), n_bytes)
        self._memory.write_word(planner, layout.n_taken(rank), number + 1)
        self._next_take += 1
        return _Kind(kind), message

    def _is_ready(self, iteration: int) -> bool:
        return self._read_n_put(iteration) > self._turns.number_of(iteration)

    def _has_room(self, rank: int) -> bool:
        return self._n_put[rank] - self._read_n_taken(rank) < self._turns.n_entries

    def _read_n_put(self, iteration: int) -> int:
        return self._memory.read_word(self.planner_of(iteration), self._layout.n_put(self._rank))

    def _read_n_taken(self, rank: int) -> int:
        return self._memory.read_word(self._rank, self._layout.n_taken(rank))

    def _check_planner(self, iteration: int, rank: int) -> None:
        self._check_rank(rank)
        if self.planner_of(iteration) != self._rank:
            raise reasons.not_the_planner(iteration, self._rank, self.planner_of(iteration))
        if self._turns.number_of(iteration) != self._n_put[rank]:
            expected = self._turns.iteration_at(self._n_put[rank], like=iteration)
            raise reasons.out_of_order("put", iteration, rank, expected)

    def _check_reader(self, rank: int) -> None:
        self._check_rank(rank)
        if rank != self._rank:
            raise reasons.not_the_reader(rank, self._rank)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._turns.n_ranks:
            raise reasons.no_such_rank(rank, self._turns.n_ranks)
