"""The processes that share work, with MPI or without."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a job, as far as they need no MPI; `Job` is one of them, and `Alone` another."""

    @property
    def rank(self) -> int:
        """Rank of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

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
        """A list of the value."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The value."""
        return value

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Nothing to agree on; errors go their way."""
        yield
