"""Protocol of what records how far a rank is in its plan."""

from typing import Protocol


class Progress(Protocol):
    """Record of the progress of a rank."""

    def reach(self, index: int, before: object) -> None:
        """Records that the host has executed all instructions before `index`."""
        ...


class Unwatched:
    """The `Progress` of a rank that nobody watches."""

    def reach(self, index: int, before: object) -> None:
        """Records nothing."""
