"""The place of the run folder: whether it can be written and is seen by all hosts."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.experiment.lock.run_lock import writer_of

_BLOCK = bytes(1 << 20)
_LITTLE_BYTES = 1e9


def check_folder(case: Case) -> Iterator[Finding]:
    """Writes and renames a file, and looks for it from every rank (collective)."""
    place, folder, written = _existing(case.folder), None, Path()
    if case.job.is_first:
        try:
            folder = Path(mkdtemp(prefix=".dynapipe-hpc-", dir=place))
            yield _written(folder, place)
            written = folder
        except OSError as error:
            remedy = "name another folder with -o, or change its permissions"
            yield Finding("writing", f"{place}: {error.strerror}; {remedy}", Level.PROBLEM)
    # Outside of `try`: ranks that meet more often than others wait forever.
    written = case.job.broadcast(written)
    if not case.job.is_first:
        yield from _check_is_visible(written)
    case.job.barrier()
    if folder is not None:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            text = f"{folder}: cannot be removed: {error.strerror or error}; remove it"
            yield Finding("cleaning up", text, Level.WARNING)
    if case.job.is_first and written != Path():
        yield _free(place)
        yield from _lock(case.folder)


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    folder = folder.resolve()
    return next(each for each in (folder, *folder.parents) if each.exists())


def _written(folder: Path, place: Path) -> Finding:
    started_s = time.perf_counter()
    with (folder / "beside").open("wb") as file:
        file.write(_BLOCK)
        file.flush()
        os.fsync(file.fileno())
    (folder / "beside").replace(folder / "complete")
    took_ms = 1e3 * (time.perf_counter() - started_s)
    return Finding(
        "writing", f"{place}: 1 MiB written, synchronised and renamed in {took_ms:.1f} ms"
    )


def _check_is_visible(folder: Path) -> Iterator[Finding]:
    if folder != Path() and not (folder / "complete").exists():
        yield Finding(
            f"seen from {platform.node()}",
            f"the file that the first rank wrote to {folder.parent} is not visible here; runs need "
            "a file system that all hosts share",
            Level.PROBLEM,
        )


def _lock(folder: Path) -> Iterator[Finding]:
    try:
        writer = writer_of(folder)
    except InputError as error:
        yield Finding("lock", str(error), Level.PROBLEM)
        return
    if writer is not None:
        # A holder on another host may be gone.
        level = Level.PROBLEM if writer.is_alive() else Level.WARNING
        text = (
            f"{folder}: locked by another run, {writer}; wait for its end, or name another folder"
        )
        yield Finding("lock", text, level)


def _free(place: Path) -> Finding:
    free_bytes = shutil.disk_usage(place).free
    text = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= _LITTLE_BYTES:
        return Finding("space", text)
    return Finding(
        "space", f"{text}; a run may fill the disk: free some space first", Level.WARNING
    )
