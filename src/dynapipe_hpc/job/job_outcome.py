"""Ways in which a job ends, as records of it name them."""

from collections.abc import Callable
from enum import StrEnum


class JobOutcome(StrEnum):
    """Outcome of a job."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


Recorder = Callable[[JobOutcome, int, str], None]
"""Writes down how the job ends, with its exit code and a message."""


def record_nothing(how: JobOutcome, exit_code: int, message: str) -> None:
    """The recorder of a job whose end nobody asks about."""
