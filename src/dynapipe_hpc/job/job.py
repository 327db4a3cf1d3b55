"""The ranks of an MPI job: collectives, agreement on errors, and a common end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.job.ending import Ending, StopRequests
from dynapipe_hpc.job.print_error import print_error
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.job.world import MPI

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A rank's view of its MPI job; a process started alone is a job of one rank."""

    comm: MPI.Intracomm
    ending: Ending = field(default_factory=Ending)
    stop: StopRequests = field(default_factory=StopRequests)

    @property
    def rank(self) -> int:
        return self.comm.Get_rank()

    @property
    def size(self) -> int:
        return self.comm.Get_size()

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for the job."""
        return self.rank == 0

    def divide(self, part: int) -> "Job":
        """A job of the ranks that pass the same `part`, in rank order; called by all together."""
        return self._of(self.comm.Split(color=part, key=self.rank))

    def on_this_host(self) -> "Job":
        """A job of the ranks on this rank's host, in rank order; called by all together."""
        return self._of(self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))

    def free(self) -> None:
        """Releases the communicator of a job that is a part of another; its ranks together."""
        self.comm.Free()

    def barrier(self) -> None:
        """Barrier: waits for all ranks."""
        self.comm.Barrier()

    def gather(self, value: T) -> list[T]:
        """Gather: the values of all ranks, by rank, on the first; an empty list elsewhere."""
        return self.comm.gather(value, root=0) or []

    def broadcast(self, value: T) -> T:
        """Broadcast: the first rank's value, on all ranks."""
        shared: T = self.comm.bcast(value, root=0)
        return shared

    def exchange(self, values: Sequence[T]) -> list[T]:
        """All-to-all: every rank has a value for each rank; returns those for this one, by rank."""
        return self.comm.alltoall(list(values))

    def all_gather_int(self, number: int) -> list[int]:
        """All-gather: the number (0 to 2**64 - 1) of every rank, by rank, on all ranks."""
        numbers = np.empty(self.size, np.uint64)
        self.comm.Allgather(np.array([number], np.uint64), numbers)
        values: list[int] = numbers.tolist()
        return values

    def is_same_on_all(self, number: int) -> bool:
        """All-reduce: whether all ranks pass the same number (0 to 2**64 - 1)."""
        own_numbers = np.array([number, 2**64 - 1 - number], np.uint64)
        least = np.empty_like(own_numbers)
        self.comm.Allreduce(own_numbers, least, MPI.MIN)
        # The least complement is that of the largest number.
        return bool(np.array_equal(least, own_numbers))

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """All-reduce: the sum over ranks of each of some numbers (float64), on all ranks."""
        return self._reduced(numbers, MPI.SUM)

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """All-reduce: the largest over ranks of each of some numbers (float64), on all ranks."""
        return self._reduced(numbers, MPI.MAX)

    def _of(self, comm: MPI.Comm) -> "Job":
        return Job(MPI.Intracomm(comm), self.ending, self.stop)

    def _reduced(self, numbers: Sequence[float], operation: MPI.Op) -> list[float]:
        own_numbers = np.array(numbers, np.float64)
        reduced = np.empty_like(own_numbers)
        self.comm.Allreduce(own_numbers, reduced, operation)
        values: list[float] = reduced.tolist()
        return values

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Runs a block on all ranks, which all exit if any of them raises an error for the user."""
        own_error: Exception | None = None
        try:
            yield
        except (InputError, RunError, OSError) as error:
            own_error = error
        answer = (
            None
            if own_error is None
            else (str(own_error), 1 if isinstance(own_error, RunError) else 2)
        )
        answers = [a for a in self.comm.allgather(answer) if a is not None]
        if not answers:
            return
        exit_code = max(code for _, code in answers)
        if self.is_first:
            messages = list(dict.fromkeys(message for message, _ in answers))
            for message in messages:
                print_error(message)
            self.ending.record(JobOutcome.FAILED, exit_code, "\n".join(messages))
        raise SystemExit(exit_code)


@contextmanager
def open_job() -> Iterator[Job]:
    """Joins the job; a later error on one rank ends all of them and prints its cause.

    An uncaught error in a thread counts as one that leaves the block. Without this, the peers
    of a rank that failed would wait for it forever. `SystemExit` leaves the block on all ranks
    together, as `Job.fail_together` raises it.
    """
    job = Job(MPI.COMM_WORLD)
    job.stop.listen(job.ending)
    _end_on_errors_of_threads(job)
    job.ending.open()
    try:
        yield job
    except SystemExit:
        job.ending.close()
        raise
    except BaseException as error:
        job.ending.end(error)
    job.ending.close()


def _end_on_errors_of_threads(job: Job) -> None:
    def end(uncaught: threading.ExceptHookArgs) -> None:
        job.ending.end(uncaught.exc_value or uncaught.exc_type())

    threading.excepthook = end


class _EndsEarly(Exception):  # noqa: N818 - not this rank's error
    """Another rank failed, and reports the error itself; or a rank was asked to stop."""


@contextmanager
def fail_early(job: Job) -> Iterator[Callable[[], None]]:
    """Ends the block on all ranks soon after an error for the user on one of them.

    Used inside `Job.fail_together`, where failed ranks would wait for those that still work. Called
    by all ranks together. The block calls what it gets from time to time; that ends it if another
    rank failed or any rank was asked to stop, which the caller has to handle after the block.
    """
    peers = job.comm.Dup()

    def check() -> None:
        if job.stop.asked or peers.iprobe():
            raise _EndsEarly

    def tell() -> None:
        for rank in range(job.size):
            if rank != job.rank:
                peers.send(None, rank)  # so small that the send does not block

    try:
        yield check
    except _EndsEarly:
        if job.stop.asked:
            tell()
    except (InputError, RunError, OSError):
        tell()
        raise
