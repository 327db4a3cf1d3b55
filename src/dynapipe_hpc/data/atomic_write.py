"""Atomic writes of files, which appear complete or not at all, and the checks before them."""

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, RunError

MAX_NAME_BYTES = 160
"""Longest file name in bytes: with its suffix, a temporary file stays within the usual 255."""
LEFT_AFTER_S = 24 * 3600.0
"""Seconds without a write after which a temporary file counts as left by a killed job."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def atomic_write(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Opens a temporary file in the folder of `path`, and renames it to `path` at the end.

    After an exception or an interruption the temporary file is removed and `path` is what it was
    before. The temporary file is new, has a random name, and is written through its descriptor:
    no link that somebody puts into the folder is followed.

    `lasting`: Whether to wait until file and folder are on disk, where they survive a power cut.
    """
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    with writing(path):
        descriptor = os.open(temporary, _CREATE, 0o666)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
            if lasting:
                os.fsync(descriptor)
            temporary.replace(path)
            if lasting:
                sync_folder(path.parent)
        finally:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Makes a temporary folder to write in, and renames it to `path` at the end.

    After an exception or an interruption nothing is left.
    """
    if os.path.lexists(path):
        raise InputError(f"{path}: already exists; name another output, or remove it first")
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    with writing(path):
        temporary.mkdir()
        try:
            yield temporary
            sync_folder(temporary)
            temporary.rename(path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_left_over(path: Path) -> None:
    """Removes temporary files of `path` that killed jobs have left.

    A file's name does not tell whether its writer is alive, perhaps on another host or in a
    container. A file counts as left if nobody has written to it for a day; clocks differ by less.
    """
    with writing(path):
        oldest_s = time.time() - LEFT_AFTER_S
        for each in unfinished(path.parent, escape(path.name)):
            with suppress(FileNotFoundError):
                if each.lstat().st_mtime < oldest_s:
                    each.unlink()


def remove_unfinished(folder: Path, *names: str) -> None:
    """Removes temporary files from a folder whose lock keeps other writers out.

    `folder`: The folder, which need not exist.
    """
    with writing(folder):
        paths = unfinished(folder, *names)
    for left in paths:
        with writing(left):
            left.unlink()


def unfinished(folder: Path, *names: str) -> list[Path]:
    """Temporary files, in this folder, of files that have these names or match these patterns."""
    paths = (path for n in names for path in folder.glob(f".{n}.{'[0-9a-f]' * 16}.partial"))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, where the file system supports that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # the folder may be written, but not read
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
    """Turns a failed write into an error that names the file."""
    try:
        yield
    except OSError as error:
        # The message of HDF5 is a long trace; the error number says it better.
        reason = os.strerror(error.errno) if error.errno else error
        raise RunError(f"{path}: cannot be written: {reason}") from error


def check_replaceable(path: Path) -> None:
    """Checks, before the work starts, that a file can be written or replaced."""
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise InputError(f"{path}: its name exceeds {MAX_NAME_BYTES} bytes; choose a shorter one")
    if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir fails on long names
        raise InputError(f"{path}: its folder '{path.parent}' does not exist; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: its folder '{path.parent}' is not writable; choose another")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; name another output")


def check_output(path: Path, inputs: Sequence[Path], force: bool) -> None:
    """Checks, before the work starts, that an output file can and may be written.

    `inputs`: Files that the output must not replace. `force`: Whether to replace another file.
    """
    check_replaceable(path)
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is both an input and the output; name another output")
    if path.exists() and not force:
        raise InputError(f"{path}: already exists; name another output, or replace it: --force")
