"""The processes that share work, with MPI or without, and ways in which they end."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:  # starts MPI
    from dynapipe_hpc.job.job import Job

T = TypeVar("T")


class Alone:
    """A process that was started without a launcher, and needs no MPI; a job of one rank."""

    rank = 0
    size = 1
    is_first = True

    def gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        yield


Ranks: TypeAlias = "Job | Alone"
"""The processes that share work."""


class JobOutcome(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
