"""The ranks of this job, and how they end together."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.job.ending import Ending
from dynapipe_hpc.job.say import say
from dynapipe_hpc.job.stop_requests import StopRequests
from dynapipe_hpc.job.world import MPI

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """One process of an MPI job; a process started alone is a job of one rank.

    Attributes:
        comm: All ranks of the job.
        ending: Ends the whole job when this rank cannot go on.
        stop: Whether this process was asked to stop.
    """

    comm: MPI.Intracomm
    ending: Ending = field(default_factory=Ending)
    stop: StopRequests = field(default_factory=StopRequests)

    @property
    def rank(self) -> int:
        """This process."""
        return self.comm.Get_rank()

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.comm.Get_size()

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for the job."""
        return self.rank == 0

    def divide(self, part: int) -> "Job":
        """The ranks that name the same part, in their order; all ranks together."""
        return Job(
            MPI.Intracomm(self.comm.Split(color=part, key=self.rank)), self.ending, self.stop
        )

    def on_this_host(self) -> "Job":
        """The ranks that share this rank's host, in their order; all ranks together."""
        comm = self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        return Job(MPI.Intracomm(comm), self.ending, self.stop)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.comm.Barrier()

    def gather(self, value: T) -> list[T]:
        """The values of all ranks by rank, on the first; an empty list elsewhere."""
        return self.comm.gather(value, root=0) or []

    def broadcast(self, value: T) -> T:
        """The first rank's value, on all."""
        shared: T = self.comm.bcast(value, root=0)
        return shared

    def numbers_of_all(self, number: int) -> list[int]:
        """A number of every rank, 0 to 2**64 - 1, by rank; on all ranks."""
        numbers = np.empty(self.size, np.uint64)
        self.comm.Allgather(np.array([number], np.uint64), numbers)
        found: list[int] = numbers.tolist()
        return found

    def largest(self, number: int) -> int:
        """The largest number that a rank has; on all ranks."""
        found = np.empty(1, np.int64)
        self.comm.Allreduce(np.array([number], np.int64), found, MPI.MAX)
        return int(found[0])

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Runs a block on all ranks; an error that explains itself on any of them ends all.

        Raises:
            SystemExit: On every rank; the first has printed what each of them met.
        """
        met: Exception | None = None
        try:
            yield
        except (InputError, RunError, OSError) as error:
            met = error
        answer = None if met is None else (str(met), 1 if isinstance(met, RunError) else 2)
        answers = [a for a in self.comm.allgather(answer) if a is not None]
        if answers and self.is_first:
            for message in dict.fromkeys(message for message, _ in answers):
                say(message)
        if answers:
            raise SystemExit(max(code for _, code in answers))


@contextmanager
def open_job() -> Iterator[Job]:
    """Joins the job; what goes wrong on one rank later ends all of them, with its cause.

    An error that leaves a thread counts as one that leaves the block. Without this, the peers
    of a rank that raised would wait for it for ever.
    """
    job = Job(MPI.COMM_WORLD)
    job.stop.listen(job.ending)
    _end_on_errors_of_threads(job)
    job.ending.open()
    try:
        yield job
    except SystemExit:
        raise
    except BaseException as error:
        job.ending.end(error)
    job.ending.close()


def _end_on_errors_of_threads(job: Job) -> None:
    def end(uncaught: threading.ExceptHookArgs) -> None:
        job.ending.end(uncaught.exc_value or uncaught.exc_type())

    threading.excepthook = end
