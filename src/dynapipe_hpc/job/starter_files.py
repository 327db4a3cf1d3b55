"""Batch scripts and example configurations, copied to the user's folder as a start."""

import os
from contextlib import ExitStack
from pathlib import Path
from shutil import copyfile

from dynapipe_hpc.data.atomic_write import new_folder
from dynapipe_hpc.data.errors import InputError

FOLDERS = ("slurm", "configs", "benchmarks/cluster")
"""Folders that are copied, relative to their home; `slurm/smoke.sbatch` runs the benchmarks."""

_IN_WHEEL = Path(__file__).parents[1] / "share"
_IN_CHECKOUT = Path(__file__).parents[3]


def home_of_starter_files() -> Path:
    """The folder that has `FOLDERS`: one in the package if it is installed, else the checkout."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT


def copy_starter_files(folder: Path) -> list[str]:
    """Copies all of `FOLDERS` into a folder, under the names that they have in a checkout.

    Nothing is overwritten; after an error or an interruption no part of a copy is left. Returns the
    names of the new entries of the folder.
    """
    if not os.path.lexists(folder):
        with new_folder(folder) as temporary:
            return _copy_into(temporary)
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; name a new or an existing one")
    return _copy_into(folder)


def _copy_into(folder: Path) -> list[str]:
    home = home_of_starter_files()
    names = list(dict.fromkeys(each.partition("/")[0] for each in FOLDERS))
    with ExitStack() as complete:
        temporary = {name: complete.enter_context(new_folder(folder / name)) for name in names}
        for source in (path for each in FOLDERS for path in sorted((home / each).rglob("*"))):
            name, *rest = source.relative_to(home).parts
            if source.is_file() and "__pycache__" not in rest:
                _copy_to_edit(source, temporary[name].joinpath(*rest))
    return names


def _copy_to_edit(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copyfile(source, target)
    with target.open("rb") as copy:
        is_script = copy.read(2) == b"#!"
    if is_script:
        mode = target.stat().st_mode
        target.chmod(mode | (mode & 0o444) >> 2)  # who may read it may run it
