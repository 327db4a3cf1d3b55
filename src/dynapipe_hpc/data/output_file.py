"""Output files of the commands, and which existing files they may replace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.atomic_write import check_replaceable
from dynapipe_hpc.data.errors import InputError


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of output file."""

    name: str
    describes: Callable[[Path], bool]


def check_output(path: Path, inputs: Sequence[Path], kind: FileKind, force: bool) -> None:
    """Checks, before the work starts, that an output file can be written and may be.

    `inputs`: Existing files that it must not replace. `kind`: Kind of the file; one of another kind
    is never replaced. `force`: Whether an existing file of this kind may be replaced.
    """
    check_replaceable(path)
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is both an input and the output; name another output")
    if not path.exists():
        return
    if not kind.describes(path):
        raise InputError(
            f"{path}: exists and is not {kind.name}, so it is not overwritten; name another output"
        )
    if not force:
        raise InputError(f"{path}: already exists; name another output, or replace it: --force")
