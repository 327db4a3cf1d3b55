"""The ranks of this job: read once, at the start."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mpi4py import MPI

from dynapipe_hpc.data.errors import InputError

T = TypeVar("T")


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


@contextmanager
def open_job() -> Iterator[Job]:
    """Joins the job; an exception on one rank ends all of them, with its cause printed.

    Errors that every rank meets alike (`InputError`) are left to the caller only in a job of
    one; in a larger one each rank may have met a different one, so the job is aborted.
    """
    job = Job(MPI.COMM_WORLD)
    try:
        yield job
    except BaseException as error:
        if job.size == 1:
            raise
        _abort(job, error)


def _abort(job: Job, error: BaseException) -> Any:
    host = MPI.Get_processor_name()
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    sys.stderr.write(f"dynapipe-hpc: rank {job.rank} on {host}: {reason}\n")
    sys.stderr.flush()
    job.comm.Abort(2 if isinstance(error, InputError) else 1)
