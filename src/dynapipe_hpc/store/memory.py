"""Memory that several ranks read and write."""

from typing import Protocol


class Memory(Protocol):
    """Memory of other ranks, in which the rings of hosts are.

    Contract: `read` and `write` are complete when they return. A rank that reads bytes of a write
    also finds the bytes of all earlier writes of the same rank.
    """

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        """The `n_bytes` bytes at `offset` in the memory of an owner."""
        ...

    def write(self, owner: int, offset: int, message: bytes) -> None:
        """Sets the bytes at `offset` in the memory of an owner."""
        ...
