"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.data.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the name of a file to write beside `path`, and moves it there at the end.

    After an exception, an interruption included, the file beside is removed and `path` is
    what it was before.

    Raises:
        InputError: As `check_replaceable`.
    """
    check_replaceable(path)
    # The process id, because two runs that write the same file must not share the one beside.
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Checks early that a file can be written.

    Raises:
        InputError: There is no folder that may be written, or `path` is a folder itself.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder '{path.parent}' does not exist; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: its folder '{path.parent}' cannot be written; choose another")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
