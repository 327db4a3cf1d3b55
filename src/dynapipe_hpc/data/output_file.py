"""Files that a verb writes, and what they may replace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.replacing import check_replaceable


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that a verb writes.

    Attributes:
        name: The kind in a message, with its article.
        describes: Whether a file is of this kind.
    """

    name: str
    describes: Callable[[Path], bool]


def check_output(path: Path, inputs: Sequence[Path], kind: FileKind, force: bool) -> None:
    """Checks early that a file can be written, and may be.

    Args:
        path: The file.
        inputs: Existing files that it must not replace.
        kind: The only kind of file that it may replace.
        force: Whether it may replace one.

    Raises:
        InputError: As `check_replaceable`; or it is an input, or exists and is of another kind,
            or exists and `force` is not set.
    """
    check_replaceable(path)
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is both an input and the output; name another output")
    if not path.exists():
        return
    if not kind.describes(path):
        raise InputError(
            f"{path}: exists and is not {kind.name}, so it is never replaced; name another output"
        )
    if not force:
        raise InputError(f"{path}: exists already; name another output, or replace it: --force")
