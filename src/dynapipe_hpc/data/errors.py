"""The two kinds of error that users see without a traceback, and functions that print them."""

import difflib
import sys
from collections.abc import Collection, Sequence
from itertools import islice

MAX_MESSAGE_CHARACTERS = 1600
MAX_NAMES = 8
_MAX_VALUE = 120
_CUT = " [...] "


class InputError(ValueError):
    """Input that cannot be used: a file, a configuration key, a sample, an argument.

    The message names the file or key, the value, the limit and the remedy. The command line
    prints it and exits with code 2.
    """


class RunError(RuntimeError):
    """A run that cannot continue, for the reason given in the message. Exit code 1."""


def escaped(text: str, *, keep: str = "\n") -> str:
    """Text made safe for a terminal, whatever names and values are in it.

    Unprintable characters, such as those that move the cursor or change the direction of writing,
    are escaped as in Python. `keep`: Characters to leave as they are; none for names in a table.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def printable(message: str) -> str:
    """An escaped message; a long one is cut in the middle: place and remedy are at its ends."""
    shown = escaped(message)
    if len(shown) <= MAX_MESSAGE_CHARACTERS:
        return shown
    return (
        f"{shown[: 3 * MAX_MESSAGE_CHARACTERS // 4]}{_CUT}{shown[-MAX_MESSAGE_CHARACTERS // 4 :]}"
    )


def quoted(value: object) -> str:
    """The `repr` of a value for a message; a long one is cut."""
    if isinstance(value, int) and value.bit_length() > 4 * _MAX_VALUE:
        return "a number of hundreds of digits"  # Python refuses to write thousands of them
    shown = repr(value)
    return shown if len(shown) <= _MAX_VALUE else f"{shown[:_MAX_VALUE]}{_CUT}"


def listed(names: Collection[object]) -> str:
    """Names or numbers for an error message, at most `MAX_NAMES` of them."""
    shown = ", ".join(map(quoted, islice(names, MAX_NAMES)))
    more = len(names) - MAX_NAMES
    return f"{shown}, {more} more" if more > 0 else shown or "no fields"


def print_error(message: str) -> None:
    """Prints an escaped message with the package's name on standard error, unbuffered."""
    sys.stderr.write(f"dynapipe-hpc: {printable(message)}\n")
    sys.stderr.flush()


def warn(message: str) -> None:
    """Prints a warning as `print_error` does: the job continues, but not as it should."""
    print_error(f"warning: {message}")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The nearest known word, as the end of a message; empty if none is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
