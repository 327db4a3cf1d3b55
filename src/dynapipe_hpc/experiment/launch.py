"""The ranks of this job, and how they end together."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError, printable
from dynapipe_hpc.experiment.world import MPI

T = TypeVar("T")

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT


@dataclass(frozen=True, slots=True)
class Job:
    """One process of an MPI job; a process started alone is a job of one rank.

    Attributes:
        comm: All ranks of the job.
    """

    comm: MPI.Intracomm

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
        return Job(MPI.Intracomm(self.comm.Split(color=part, key=self.rank)))

    def on_this_host(self) -> "Job":
        """The ranks that share this rank's host, in their order; all ranks together."""
        return Job(MPI.Intracomm(self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)))

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
                sys.stderr.write(f"dynapipe-hpc: {printable(message)}\n")
        if answers:
            raise SystemExit(max(code for _, code in answers))


@contextmanager
def open_job() -> Iterator[Job]:
    """Joins the job; what goes wrong on one rank later ends all of them, with its cause.

    An error that leaves a thread counts as one that leaves the block. Without this, the peers
    of a rank that raised would wait for it for ever.
    """
    job = Job(MPI.COMM_WORLD)
    _end_on_signals(job)
    _end_on_errors_of_threads(job)
    try:
        yield job
    except SystemExit:
        raise
    except BaseException as error:
        _abort(job, error)


def _end_on_signals(job: Job) -> None:
    """Answers Ctrl-C and SIGTERM at once, also while the main thread is inside of C code."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end, args=(job, reading), name="signals", daemon=True).start()


def _end(job: Job, reading: int) -> NoReturn:
    number = signal.Signals(os.read(reading, 1)[0])
    if job.is_first:
        sys.stderr.write(f"dynapipe-hpc: ended by {number.name}\n")
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def _end_on_errors_of_threads(job: Job) -> None:
    def abort(uncaught: threading.ExceptHookArgs) -> None:
        _abort(job, uncaught.exc_value or uncaught.exc_type())

    threading.excepthook = abort


def _abort(job: Job, error: BaseException) -> NoReturn:
    if not isinstance(error, RunError):
        traceback.print_exception(error)
    sys.stderr.write(
        f"dynapipe-hpc: rank {job.rank} on {MPI.Get_processor_name()} ends the job: {error}\n"
    )
    sys.stderr.flush()
    job.comm.Abort(1)
    raise AssertionError("MPI_Abort returned")
