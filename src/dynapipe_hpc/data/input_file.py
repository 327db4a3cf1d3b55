"""Reading files that a user names."""

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from dynapipe_hpc.data.errors import InputError

MAX_BYTES = 1 << 28
GIT_LFS = b"version https://git-lfs.github.com/spec/"
"""Start of a pointer file, which stands for another file."""
IS_POINTER = (
    "is only a pointer of Git LFS, which stands for the file in a folder that was cloned "
    "without it; fetch the file itself: git lfs pull"
)
_HUB_NAME = re.compile(r"[\w-]+|[\w.-]*\w/\w[\w.-]*")
"""Name of a model or tokenizer on the Hugging Face Hub, from which nothing is downloaded."""
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_input(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Reading a pipe could block, and a device may have no end, so both are refused, even if one
    replaces the file while it is being opened.

    Raises `OSError`: The file cannot be opened; `strerror` says why.
    """
    _check_regular(path.stat().st_mode)  # opening a device may already do something
    try:
        descriptor = os.open(path, _OPEN)
    except PermissionError:
        raise PermissionError(errno.EACCES, "may not be read; change its permissions") from None
    try:
        _check_regular(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def why_unreadable(path: Path) -> str:
    """Reason why a file cannot be read; empty if it can."""
    try:
        with open_input(path) as file:
            begins = file.read(len(GIT_LFS))
    except (OSError, ValueError) as error:
        return _reason(error)
    return IS_POINTER if begins == GIT_LFS else ""


def read_input(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file that is expected to be small."""
    try:
        with open_input(path) as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    if content.startswith(GIT_LFS):
        raise InputError(f"{path}: cannot be read: {IS_POINTER}")
    if len(content) > most_bytes:
        raise InputError(f"{path}: is larger than {most_bytes:,} bytes; name the right file")
    return content


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """The text of a file that is expected to be small, with its line ends as they are."""
    try:
        return read_input(path, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start + 1}") from None


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text; None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file")


def _reason(error: Exception) -> str:
    """The reason that the system gives; for a name with a zero byte, the error's text."""
    return getattr(error, "strerror", None) or str(error)


def download_advice(path: Path) -> str:
    """Advice to download a model, if a path looks like its name on the hub; else empty."""
    is_of_here = os.path.lexists(path) or (path.parent != Path() and path.parent.exists())
    if is_of_here or not _HUB_NAME.fullmatch(str(path)):
        return ""
    return (
        f"; if it is a name on the Hugging Face hub, download it first (hf download {path} "
        "--local-dir FOLDER) and name that folder"
    )
