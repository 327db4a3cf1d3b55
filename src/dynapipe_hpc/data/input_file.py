"""Files that a user names."""

import os
import stat
from pathlib import Path

from dynapipe_hpc.data.errors import InputError

MOST_BYTES = 1 << 28


def why_unreadable(path: Path) -> str:
    """Why a file cannot be read; empty if it can.

    Only regular files can: a pipe would be waited for, and a device may have no end.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _reason(error)
    except ValueError as error:  # a name with a zero byte
        return str(error)
    if stat.S_ISDIR(mode):
        return "is a folder"
    if not stat.S_ISREG(mode):
        return "is no regular file"
    return "" if os.access(path, os.R_OK) else "may not be read; change its permissions"


def read_input(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """All of a file of a kind that is not large.

    Raises:
        InputError: It cannot be read, or is larger than `most_bytes`.
    """
    if reason := why_unreadable(path):
        raise InputError(f"{path}: cannot be read: {reason}")
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    if len(content) > most_bytes:
        raise InputError(f"{path}: is larger than {most_bytes:,} bytes, so not what is meant")
    return content


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The same as text, with line ends as they are.

    Raises:
        InputError: As `read_input`, or it is not UTF-8.
    """
    try:
        return read_input(path, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start + 1}") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
