"""Messages of the package, which do not belong to the output of a verb."""

import sys

from dynapipe_hpc.data.errors import printable


def say(message: str) -> None:
    """Prints a message on standard error at once, escaped, and with the name of the package."""
    sys.stderr.write(f"dynapipe-hpc: {printable(message)}\n")
    sys.stderr.flush()


def warn(message: str) -> None:
    """Prints a warning as `say` does: the job goes on, but not as it should."""
    say(f"warning: {message}")
