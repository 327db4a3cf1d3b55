"""The lock on a run folder, by which one run at a time writes there."""

import errno
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.lock.lock_holder import LockHolder, read_holder
from dynapipe_hpc.experiment.lock.signs_of_life import BEAT_S, PATIENCE_S, gives_sign
from dynapipe_hpc.report.run_folder import LOCK

_PAUSE_S = 0.05
_NOT_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}


class RunLock:
    """A folder with one file that names the holder; no two locks use the same file name.

    Renaming a folder into place takes the lock: it fails if a non-empty folder is there, and
    succeeds for one process only, also over NFS. A file whose process is gone is removed by name,
    which cannot remove the lock of another run. The holder touches its file every `BEAT_S`, so
    that processes on other hosts, which cannot see it, know that it is alive.
    """

    def __init__(self, folder: Path, job: str = "", patience_s: float = PATIENCE_S) -> None:
        """Prepares to lock a run folder.

        Args:
            folder: The run folder, which need not exist yet.
            job: Name of the batch job that this process belongs to; empty if there is none.
            patience_s: Time without a sign of life after which a holder elsewhere counts as gone.
        """
        self._folder, self._lock = folder, folder / LOCK
        self._holder = LockHolder.this_process(job)
        self._own = self._lock / f"{uuid4().hex}.json"
        self._patience_s = patience_s
        self._is_new_folder = False
        self._released = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="run lock", daemon=True)

    def acquire(self) -> None:
        """Takes the lock, and creates the folder if there is none.

        Raises:
            InputError: Another run holds the lock, or the folder cannot be written.
        """
        self._is_new_folder = not os.path.lexists(self._folder)
        try:
            self._take_when_free()
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be written: {error.strerror}; choose another folder"
            ) from None
        finally:
            if not self._is_held():
                self._remove_new_folder()
        self._beating.start()

    def release(self) -> None:
        """Releases the lock, and removes the folder if `acquire` made it and it is empty."""
        self._released.set()
        self._beating.join()
        with suppress(OSError):
            self._own.unlink()
            self._lock.rmdir()
        self._remove_new_folder()

    def check(self) -> None:
        """Checks before a write that the lock is still held.

        Raises:
            RunError: The lock is gone: this process gave no sign of life for so long that another
                run took over, or somebody removed it.
        """
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

    def _take_when_free(self) -> None:
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
        for left in self._folder.glob(
            f"{LOCK}.*"
        ):  # left by a start that was killed while it took the lock
            shutil.rmtree(left, ignore_errors=True)

    def _take(self) -> bool:
        # Each time, as the process that made the folder removes it if its start fails.
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f"{LOCK}.{self._own.name}"
        try:
            temporary.mkdir()
            self._holder.write(temporary / self._own.name)
            temporary.rename(self._lock)
        except NotADirectoryError:
            raise _not_a_folder_error(self._lock) from None
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
            is_alive = gives_sign(other, f"{self._folder}: {holder}", self._patience_s)
        if is_alive:
            raise InputError(
                f"{self._folder}: in use by another run, {holder}; wait for its end, stop it, "
                "or name another folder"
            )
        other.unlink(missing_ok=True)

    def _beat(self) -> None:
        """Touches the lock file regularly, and ends the process if the lock was lost."""
        while not self._released.wait(BEAT_S):
            # A failed touch does not matter by itself, only whether the lock is still held.
            with suppress(OSError):
                os.utime(self._own)
            self.check()

    def _remove_new_folder(self) -> None:
        if self._is_new_folder:
            with suppress(OSError):
                self._folder.rmdir()


def writer_of(folder: Path) -> LockHolder | None:
    """The holder of the lock on a folder; None if there is none or its process is gone.

    Raises:
        InputError: The name of the lock is taken by something that is no folder.
    """
    lock = folder / LOCK
    if lock.exists() and not lock.is_dir():
        raise _not_a_folder_error(lock)
    holders = map(read_holder, lock.glob("*.json"))
    return next((holder for holder in holders if holder.is_alive() is not False), None)


def _not_a_folder_error(lock: Path) -> InputError:
    return InputError(f"{lock}: has the name of the lock but is no folder; remove it")
