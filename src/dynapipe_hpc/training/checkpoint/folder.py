"""Folder of a run's checkpoints; docs/formats.md describes the files."""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from dynapipe_hpc.data.atomic_write import sync_folder, writing
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.files import Description
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

COMPLETE = re.compile(r"\d{6,}")
REMOVED = ".removed.partial"
LEFT = re.compile(r"\.\d{6,}(\.removed)?\.partial")


class CheckpointFolder:
    """Checkpoints of a run: a folder per checkpoint, named after the number of iterations done.

    A checkpoint that is being written has a hidden name, and is renamed when it is on disk.

    Attributes:
        path: Folder that holds the checkpoints.
        best: Number of iterations of the checkpoint that is kept as the best; None for none.
    """

    def __init__(self, path: Path, config: CheckpointConfig) -> None:
        """Manages the checkpoints in `path`, which need not exist yet."""
        self.path = path
        self._config = config
        self.best: int | None = None

    def complete(self) -> list[Path]:
        """Complete checkpoints, newest first."""
        folders = [path for path in self._entries() if COMPLETE.fullmatch(path.name)]
        return sorted(folders, key=lambda path: -int(path.name))

    def begin(self, n_done: int) -> Path:
        """Creates the folder in which to write a checkpoint; any rank may be the first to ask."""
        partial = self._partial(n_done)
        with writing(partial):
            partial.mkdir(parents=True, exist_ok=True)
        return partial

    def finish(self, description: Description) -> Path:
        """Completes a checkpoint whose parts are on disk, and removes the checkpoints it replaces.

        The small files of Hugging Face that the run folder holds are copied into it.
        """
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
            n_free = shutil.disk_usage(self.path).free
        if n_bytes > n_free:
            raise RunError(
                f"{self.path}: a checkpoint needs {n_bytes:,} bytes, but only {n_free:,} are free; "
                "free some space or name another run folder"
            )

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
        # If old ones cannot be removed, the new one is complete all the same.
        with suppress(InputError, OSError):
            for path in self.complete()[self._config.keep_last :]:
                n_done = int(path.name)
                if n_done != self.best and (not every or n_done % every):
                    # Renamed first, so that a partly removed one does not count as complete.
                    doomed = path.with_name(f".{path.name}{REMOVED}")
                    path.rename(doomed)
                    shutil.rmtree(doomed)
