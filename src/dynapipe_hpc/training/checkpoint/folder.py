"""The checkpoints of a run on disk; docs/formats.md describes the files."""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.replacing import sync_folder, writing
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.description import Description

COMPLETE = re.compile(r"\d{6,}")
REMOVED = ".removed.partial"
LEFT = re.compile(r"\.\d{6,}(\.removed)?\.partial")


class CheckpointFolder:
    """A folder per checkpoint, named after the iterations done.

    One that is being written has a hidden name, and gets its own when all of it is on disk.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path, config: CheckpointConfig) -> None:
        """Looks after `path`, which need not exist yet."""
        self.path = path
        self._config = config

    def complete(self) -> list[Path]:
        """Checkpoints, the newest first.

        Raises:
            InputError: The folder may not be read.
        """
        found = [path for path in self._entries() if COMPLETE.fullmatch(path.name)]
        return sorted(found, key=lambda path: -int(path.name))

    def begin(self, n_done: int) -> Path:
        """Where to write a checkpoint; any rank may be the first to ask.

        Raises:
            RunError: The file system refuses.
        """
        partial = self._partial(n_done)
        with writing(partial):
            partial.mkdir(parents=True, exist_ok=True)
        return partial

    def finish(self, description: Description) -> Path:
        """Completes a checkpoint whose parts are on disk, and removes those that it replaces.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        partial = self._partial(description.n_done)
        path = self.path / f"{description.n_done:06d}"
        with writing(partial):
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
        """Removes what earlier runs left; returns what of it was never completed.

        Raises:
            InputError: The folder may not be read.
        """
        left = sorted(path for path in self._entries() if LEFT.fullmatch(path.name))
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path for path in left if not path.exists() and not path.match(f"*{REMOVED}")]

    def set_aside(self, checkpoint: Path) -> Path:
        """Renames a checkpoint that is damaged, so that it does not count any more."""
        aside = checkpoint.with_name(f"{checkpoint.name}.damaged")
        with writing(aside):
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
        return aside

    def check_room(self, n_bytes: int) -> None:
        """Compares what a checkpoint takes with what the file system has.

        Raises:
            RunError: It does not fit.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            n_free = shutil.disk_usage(self.path).free
        if n_bytes > n_free:
            raise RunError(f"{self.path}: takes {n_bytes:,} bytes, but only {n_free:,} are free")

    def _entries(self) -> list[Path]:
        if not os.path.exists(self.path):  # noqa: PTH110 - nor where nobody may look
            return []
        try:
            return list(self.path.iterdir())
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read: {error.strerror}; make it a folder that can, or "
                "name another run folder"
            ) from None

    def _partial(self, n_done: int) -> Path:
        return self.path / f".{n_done:06d}.partial"

    def _remove_old(self) -> None:
        every = self._config.keep_every
        # Whatever prevents that, the new one is complete.
        with suppress(InputError, OSError):
            for path in self.complete()[self._config.keep_last :]:
                if not every or int(path.name) % every:
                    # Under a name that does not count, lest half of it be taken for a whole one.
                    doomed = path.with_name(f".{path.name}{REMOVED}")
                    path.rename(doomed)
                    shutil.rmtree(doomed)
