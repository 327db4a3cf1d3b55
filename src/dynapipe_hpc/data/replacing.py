"""Files that appear whole or not at all."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, RunError

LONGEST_NAME = 160
"""Bytes; with what is added, a file beside keeps within the 255 of file systems."""
LEFT_AFTER_S = 24 * 3600.0
"""Age from which a file beside that nobody writes to was left by a job that was killed."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replacing(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Gives a file to write beside `path`, and moves it there at the end.

    After an exception, an interruption included, the file beside is removed and `path` is
    what it was before. The file beside is new, has a random name, and is written to by its
    descriptor: no link that somebody puts into the folder is followed.

    Args:
        path: The file.
        lasting: Whether to wait until file and folder are on disk, to outlast a power cut.

    Yields:
        A name of the open file beside, for this process alone.

    Raises:
        InputError: As `check_replaceable`.
        RunError: As `writing`.
    """
    check_replaceable(path)
    with writing(path):
        descriptor, beside = _create_beside(path)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
            if lasting:
                os.fsync(descriptor)
            beside.replace(path)
            if lasting:
                sync_folder(path.parent)
        finally:
            os.close(descriptor)
            beside.unlink(missing_ok=True)


def remove_left_over(path: Path) -> None:
    """Removes files beside `path` that were left by jobs that were killed.

    A name does not tell whether its writer is alive, on this host, on another, or in a container.
    What has not been written to for a day, by the clock of the file system, is taken for left.

    Raises:
        RunError: The file system refuses.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
    with writing(path):
        found = [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]
        oldest_s = _now_s(path) - LEFT_AFTER_S if found else 0.0
        for each in found:
            with suppress(FileNotFoundError):
                status = each.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest_s:
                    each.unlink()


def remove_unfinished(folder: Path, *names: str) -> None:
    """Removes files beside those of a folder that a lock keeps other writers from.

    Args:
        folder: The folder, which need not exist.
        names: Names or patterns (`fnmatch`) of the files that were to be written.

    Raises:
        RunError: The file system refuses.
    """
    with writing(folder):
        found = unfinished(folder, *names)
    for left in found:
        with writing(left):
            left.unlink()


def unfinished(folder: Path, *names: str) -> list[Path]:
    """Regular files that `remove_unfinished` removes."""
    found = (path for n in names for path in folder.glob(f".{n}.{'[0-9a-f]' * 16}.partial"))
    return [path for path in found if stat.S_ISREG(path.lstat().st_mode)]


def _now_s(path: Path) -> float:
    """Time by the clock that stamps files beside `path`."""
    descriptor, probe = _create_beside(path)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


def _create_beside(path: Path) -> tuple[int, Path]:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    return os.open(beside, _CREATE, 0o666), beside


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, where the file system has that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # it may be written, but not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


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
