"""Files that appear whole or not at all."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, RunError

LONGEST_NAME = 160
"""Bytes; with host and process a file beside keeps within the 255 of file systems."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the name of a file to write beside `path`, and moves it there at the end.

    After an exception, an interruption included, the file beside is removed and `path` is
    what it was before. What processes of this host that were killed left beside goes as well.

    Raises:
        InputError: As `check_replaceable`.
        RunError: As `writing`.
    """
    check_replaceable(path)
    _remove_left_over(path)
    # Two runs that write the same file must not share the one beside.
    beside = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.partial")
    try:
        with writing(path):
            yield beside
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _remove_left_over(path: Path) -> None:
    before, after = f".{path.name}.{platform.node()}.", ".partial"
    for left in path.parent.iterdir():
        pid = left.name.removeprefix(before).removesuffix(after)
        if left.name == f"{before}{pid}{after}" and pid.isdecimal() and not _is_alive(int(pid)):
            left.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file in the error of a write that fails.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    try:
        yield
    except OSError as error:
        # HDF5 puts a history into the text that the number alone says better.
        reason = os.strerror(error.errno) if error.errno else error
        raise RunError(f"{path}: cannot be written: {reason}") from error


def check_output(path: Path, inputs: Sequence[Path], force: bool) -> None:
    """Checks early that a file can be written, and may be.

    Args:
        path: The file.
        inputs: Existing files that it must not replace.
        force: Whether it may replace any other.

    Raises:
        InputError: As `check_replaceable`; or it is an input, or exists and `force` is not set.
    """
    check_replaceable(path)
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is both an input and the output; name another output")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; name another output, or replace it: --force")


def check_replaceable(path: Path) -> None:
    """Checks early that a file can be written.

    Raises:
        InputError: There is no folder that may be written, or `path` exists and is no regular
            file: a folder, a device, a socket; or its name leaves no room for what is added.
    """
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(f"{path}: is longer than {LONGEST_NAME} bytes; name another output")
    if not _is_folder(path.parent):
        raise InputError(f"{path}: its folder '{path.parent}' does not exist; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: its folder '{path.parent}' cannot be written; choose another")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file and is not replaced; name another output")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long
        return False
