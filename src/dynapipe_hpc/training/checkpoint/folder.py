"""Folder of a run's checkpoints; docs/formats.md describes the files."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dynapipe_hpc.data.atomic_write import sync_folder, writing
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.input_file import open_input, read_input, why_unreadable
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

Fields = Mapping[str, Any]  # JSON objects are open
CHUNK_BYTES = 1 << 24
_LOST = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO)


class DamagedError(InputError):
    """A checkpoint is permanently damaged: it differs from what was written."""


def write_fields(path: Path, kind: str, version: int, fields: Fields) -> str:
    """Writes an object with its own checksum, and waits until it is on disk."""
    content = {"format": f"dynapipe-hpc {kind}", "schema_version": version, **fields}
    checksum = _checksum(content)
    with writing(path), path.open("w", encoding="utf-8") as file:
        json.dump({**content, "checksum": checksum}, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return checksum


def read_fields(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Reads what `write_fields` wrote; raises `DamagedError`, or `InputError` if it cannot now."""
    check_there(path)
    try:
        data = read_input(path)
    except InputError as error:
        raise DamagedError(str(error)) from None
    try:
        fields = json.loads(data.decode())
        checksum = fields.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path}: is damaged: {error}") from None
    if checksum != _checksum(fields):
        raise DamagedError(f"{path}: is damaged: its checksum differs")
    if (fields.get("format"), fields.get("schema_version")) != (f"dynapipe-hpc {kind}", version):
        raise InputError(
            f"{path}: is '{fields.get('format')}' of version {fields.get('schema_version')}, but "
            f"this program reads 'dynapipe-hpc {kind}' of version {version}; use the dynapipe-hpc "
            "that wrote it, or name another run folder"
        )
    return {**fields, "checksum": checksum}


def check_there(path: Path) -> None:
    """Raises `DamagedError` if there is no such file, `InputError` if it cannot be read now."""
    reason = why_unreadable(path)
    if not reason:
        return
    try:
        is_lost = not stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        is_lost = error.errno in _LOST
    kind = DamagedError if is_lost else InputError
    raise kind(f"{path}: cannot be read: {reason}")


def checksum_of(path: Path) -> str:
    """Checksum of a file; raises `DamagedError` for lost bytes, `InputError` if unreadable."""
    checksum = new_checksum()
    try:
        with open_input(path) as file:
            while block := file.read(CHUNK_BYTES):
                checksum.update(block)
    except OSError as error:
        kind = DamagedError if error.errno in _LOST else InputError
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
    return checksum.hexdigest()


def new_checksum() -> hashlib.blake2b:
    """A checksum of no data yet, by the same hash as for plans."""
    return hashlib.blake2b(digest_size=8)


def _checksum(fields: Fields) -> str:
    checksum = new_checksum()
    checksum.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    return checksum.hexdigest()


NAME, KIND, VERSION = "checkpoint.json", "checkpoint", 2

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a complete checkpoint; `online` are times that the next plans depend on."""

    n_done: int  # number of finished iterations, which is the number of the next one
    counters: Counters  # counters of the optimizer, which are equal on all ranks
    facts: Facts  # settings by name that must not change when training resumes
    part_checksums: tuple[str, ...]
    online: Sequence[Sequence[float]] = ()  # empty if costs are not corrected

    def write(self, folder: Path) -> None:
        """Writes the description, which completes a checkpoint."""
        write_fields(folder / NAME, KIND, VERSION, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the description of a complete checkpoint; raises `DamagedError`."""
        fields = read_fields(folder / NAME, KIND, VERSION)
        return cls(
            fields["n_done"],
            Counters(**fields["counters"]),
            fields["facts"],
            tuple(fields["part_checksums"]),
            tuple(fields["online"]),
        )


def check_room(folder: Path, n_bytes: int) -> None:
    """Checks that the file system of a folder has room for a checkpoint of `n_bytes`."""
    with writing(folder):
        n_free = shutil.disk_usage(folder).free
    if n_bytes > n_free:
        raise RunError(
            f"{folder}: a checkpoint needs {n_bytes:,} bytes, but only {n_free:,} are free; "
            "free some space or name another folder"
        )


COMPLETE = re.compile(r"\d{6,}")
REMOVED = ".removed.partial"
LEFT = re.compile(r"\.\d{6,}(\.removed)?\.partial")


class CheckpointFolder:
    """Checkpoints of a run: a folder per checkpoint, named after the number of iterations done.

    One that is being written has a hidden name. `best`: Number of the checkpoint kept as the best.
    """

    def __init__(self, path: Path, config: CheckpointConfig) -> None:
        self.path = path
        self._config = config
        self.best: int | None = None

    def complete(self) -> list[Path]:
        """Complete checkpoints, newest first."""
        folders = [path for path in self._entries() if COMPLETE.fullmatch(path.name)]
        return sorted(folders, key=lambda path: -int(path.name))

    def begin(self, n_done: int) -> Path:
        """Creates the folder to write a checkpoint into; any rank may be the first to call."""
        partial = self._partial(n_done)
        with writing(partial):
            partial.mkdir(parents=True, exist_ok=True)
        return partial

    def finish(self, description: Description) -> Path:
        """Completes a checkpoint whose parts are on disk, adding small files; removes old ones."""
        partial = self._partial(description.n_done)
        path = self.path / f"{description.n_done:06d}"
        with writing(partial):
            if (small_files := self.path.parent / CARRIED).is_dir():
                copy_small_files(small_files, partial / CARRIED)
            description.write(partial)
            sync_folder(partial)
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
            sync_folder(self.path)
        self._remove_old()
        return path

    def discard(self, n_done: int) -> None:
        """Removes a checkpoint that could not be written."""
        shutil.rmtree(self._partial(n_done), ignore_errors=True)

    def clear(self) -> list[Path]:
        """Removes leftovers of earlier runs; returns the checkpoints that were never completed."""
        left = sorted(path for path in self._entries() if LEFT.fullmatch(path.name))
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path for path in left if not path.exists() and not path.match(f"*{REMOVED}")]

    def set_aside(self, checkpoint: Path) -> Path:
        """Renames a damaged checkpoint, so that it no longer counts."""
        aside = checkpoint.with_name(f"{checkpoint.name}.damaged")
        with writing(aside):
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
        return aside

    def check_room(self, n_bytes: int) -> None:
        """Checks that the file system has room for a checkpoint of `n_bytes`."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        check_room(self.path, n_bytes)

    def _entries(self) -> list[Path]:
        if not os.path.exists(self.path):  # noqa: PTH110 - False if a parent may not be read
            return []
        try:
            return list(self.path.iterdir())
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read: {error.strerror}; make it a readable folder, or "
                "name another run folder"
            ) from None

    def _partial(self, n_done: int) -> Path:
        return self.path / f".{n_done:06d}.partial"

    def _remove_old(self) -> None:
        every = self._config.keep_every
        # If old checkpoints cannot be removed, the new one is complete nevertheless.
        with suppress(InputError, OSError):
            for path in self.complete()[self._config.keep_last :]:
                n_done = int(path.name)
                if n_done != self.best and (not every or n_done % every):
                    # Renamed first, so that a partly removed checkpoint is not taken as complete.
                    doomed = path.with_name(f".{path.name}{REMOVED}")
                    path.rename(doomed)
                    shutil.rmtree(doomed)
