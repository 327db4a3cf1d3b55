"""Messages on standard error, apart from the output of a command."""

import sys

from dynapipe_hpc.data.errors import printable


def print_error(message: str) -> None:
    """Prints an escaped message with the package's name on standard error, unbuffered."""
    sys.stderr.write(f"dynapipe-hpc: {printable(message)}\n")
    sys.stderr.flush()


def warn(message: str) -> None:
    """Prints a warning as `print_error` does: the job continues, but not as it should."""
    print_error(f"warning: {message}")
