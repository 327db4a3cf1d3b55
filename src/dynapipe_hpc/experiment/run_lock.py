"""The lock on a run folder, which lets only one run at a time write there."""

import errno
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.job.process import ProcessIdentity
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.report.run_folder import LOCK

if TYPE_CHECKING:  # starts MPI
    from dynapipe_hpc.job.job import Job

BEAT_S = 2.0
"""Time in s between two touches of a lock file."""
PATIENCE_S = 30.0
"""Time in s without a touch after which a process counts as dead."""
_PAUSE_S = 0.05


def gives_sign(path: Path, patience_s: float) -> bool:
    """Whether the time of a file changes within `patience_s`; needs no clock that hosts share."""
    first, start_s = _time_of(path), time.monotonic()
    while first is not None and time.monotonic() < start_s + patience_s:
        time.sleep(_PAUSE_S)
        if (now := _time_of(path)) != first:
            return now is not None
    return False


def _time_of(path: Path) -> int | None:
    """The time of the last sign; None if the file is gone.

    The file is opened, as only then NFS clients ask their server rather than their cache.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(file).st_mtime_ns
    finally:
        os.close(file)


SINCE = "%Y-%m-%d %H:%M:%S UTC"
"""Format of times, which compare as texts."""
_MAX_BYTES = 4096
_MAX_PROCESSES = 2**22  # of Linux


@validated(frozen=True, slots=True)
class LockHolder:
    """A process that holds a lock: its host, its batch job or an empty text, and since when.

    `process` is None if the file does not say.
    """

    host: str
    job: str
    since: str
    process: ProcessIdentity | None

    def __str__(self) -> str:
        if self.process is None:
            return "whose lock file does not say which process it is"
        job = f", {self.job}" if self.job else ""
        return f"process {self.process.pid} on {self.host}{job}, since {self.since}"

    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if that cannot be seen from this host."""
        return None if self.process is None else self.process.is_alive()

    def write(self, path: Path) -> None:
        """Writes the file and flushes it to disk, so that it is complete before others see it."""
        with path.open("x", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())


_UNKNOWN = LockHolder("", "", "", None)


def read_holder(path: Path) -> LockHolder:
    """Reads a lock file; if it cannot be read, the holder is unknown."""
    try:
        holder = TypeAdapter(LockHolder).validate_json(read_input(path, _MAX_BYTES))
    except (InputError, ValueError):
        return _UNKNOWN
    is_process = holder.process and 0 < holder.process.pid <= _MAX_PROCESSES
    return holder if is_process else _UNKNOWN


_NOT_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}


class RunLock:
    """A folder with one file that names the holder; no two locks use the same file name.

    Renaming a folder into place takes the lock: it fails if a non-empty folder is there, and
    succeeds for one process only, also over NFS. A file whose process is gone is removed by name,
    which cannot remove the lock of another run. The holder touches its file every `BEAT_S`, so
    that processes on other hosts, which cannot see it, know that it is alive.
    """

    def __init__(self, folder: Path, job: str = "", patience_s: float = PATIENCE_S) -> None:
        """Prepares to lock a folder, which need not exist yet, for a batch `job`, if there is one.

        A holder elsewhere that gave no sign of life for `patience_s` counts as gone.
        """
        self._folder, self._lock = folder, folder / LOCK
        since, process = datetime.now(UTC).strftime(SINCE), ProcessIdentity.from_pid(os.getpid())
        self._holder = LockHolder(platform.node(), job, since, process)
        self._own = self._lock / f"{uuid4().hex}.json"
        self._patience_s = patience_s
        self._released = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="run lock", daemon=True)

    def acquire(self) -> None:
        """Takes the lock, and creates the folder if there is none."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            end_s = time.monotonic() + 2 * self._patience_s
            while not self._take():
                others = self._files()
                for other in others:
                    self._remove_if_gone(other)
                if time.monotonic() > end_s:
                    raise InputError(
                        f"{self._lock}: cannot be taken; remove it if no run uses the folder"
                    )
                if not others:
                    time.sleep(_PAUSE_S)
            # Left by starts that were killed while they took the lock.
            for left in self._folder.glob(f"{LOCK}.*"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.strerror}; choose another folder"
            ) from None
        self._beating.start()

    def release(self) -> None:
        self._released.set()
        self._beating.join()
        with suppress(OSError):
            self._own.unlink()
            self._lock.rmdir()

    def check(self) -> None:
        """Checks before a write that the lock is still held."""
        if not self._is_held():
            raise RunError(
                f"{self._folder}: the lock of this run is gone: it gave no sign of life for "
                f"{self._patience_s:g} s and another run took over, or somebody removed it"
            )

    def _is_held(self) -> bool:
        try:
            return self._own.exists()
        except OSError:  # nobody else can take the lock while the file system fails
            return self._beating.is_alive()

    def _take(self) -> bool:
        temporary = self._folder / f"{LOCK}.{self._own.name}"
        try:
            temporary.mkdir()
            self._holder.write(temporary / self._own.name)
            temporary.rename(self._lock)
        except OSError as error:
            if error.errno not in _NOT_TAKEN:
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        # Checked, as the reply of a file server may get lost.
        return self._is_held()

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._lock.iterdir() if not path.name.startswith(".nfs")]
        except FileNotFoundError:
            return []

    def _remove_if_gone(self, other: Path) -> None:
        holder = read_holder(other)
        is_alive = holder.is_alive()
        if is_alive is None:
            is_alive = gives_sign(other, self._patience_s)
        if is_alive:
            raise InputError(
                f"{self._folder}: in use by another run, {holder}; wait for its end, stop it, "
                "or name another folder"
            )
        other.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            # A failed touch does not matter by itself, only whether the lock is still held.
            with suppress(OSError):
                os.utime(self._own)
            self.check()


def writer_of(folder: Path) -> LockHolder | None:
    """The holder of the lock on a folder; None if there is none or its process is gone."""
    holders = map(read_holder, (folder / LOCK).glob("*.json"))
    return next((holder for holder in holders if holder.is_alive() is not False), None)


@contextmanager
def locked(job: "Job", output: Path) -> Iterator[RunLock]:
    """Locks a folder while the block runs; called by all ranks together, held by the first.

    The lock is released when all ranks leave the block together. After an error on one rank the
    others may still be writing, so the lock stays until the job has ended; the next start then
    sees that its holder is gone. If another run holds the lock, the first rank says so.
    """
    slurm_job = read_slurm_job(os.environ)
    lock = RunLock(output, f"Slurm job {slurm_job.name}" if slurm_job else "")
    job.on_first(lock.acquire)
    end: SystemExit | None = None
    try:
        yield lock
    except SystemExit as error:
        end = error
    if job.is_first:
        lock.release()
    if end:
        raise end
