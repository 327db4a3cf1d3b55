"""The seam to a program that keeps and draws curves of runs."""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """A tracker of one run; any call may raise what the tracker's package raises.

    Attributes:
        name: Name of the package, for messages.
    """

    name: str

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds finite numbers by name.

        Args:
            step: Number of iterations that are done.
            numbers: The numbers.
        """

    def close(self) -> None:
        """Ends the run in an orderly way."""
