"""The processes that share work, with MPI or without, and ways in which they end."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a job, as far as they need no MPI; `Job` is one of them, and `Alone` another."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for the others."""
        ...

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on the first; an empty list elsewhere."""
        ...

    def broadcast(self, value: T) -> T:
        """The first rank's value, on all ranks."""
        ...

    def fail_together(self) -> AbstractContextManager[None]:
        """Block that all ranks leave together, or none if one of them fails."""
        ...


class Alone:
    """A process that was started without a launcher, and needs no MPI."""

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


class JobOutcome(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


Recorder = Callable[[JobOutcome, int, str], None]
"""Writes down how the job ends, with its exit code and a message."""
