"""Comparison of a run's dataset with its checksums, during training."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.dataset.joined_datasets import Dataset
from dynapipe_hpc.data.dataset.verify_dataset import SamplesDifferError, verify_dataset
from dynapipe_hpc.data.errors import InputError, RunError, escaped, printable

# Python itself exits with 1 or 2.
_ORPHANED, _UNREADABLE, _DIFFERS = 3, 4, 5
_LOWEST_PRIORITY = 19
# Without these, no MPI library can take the process for a rank.
_OF_RANKS = ("PMIX_", "PMI_", "OMPI_", "MPI_", "SLURM_")


class DatasetCheck:
    """A low-priority process that reads all samples once, and a thread that waits for its result.

    It is a process because a thread would delay training: both Python and HDF5 run one thread at a
    time. It ends with this process, however that ends.
    """

    def __init__(self, dataset: Dataset, *, is_wanted: bool = True) -> None:
        """Starts the comparison, or says why there is none."""
        self._paths = [file.path for file in dataset.files]
        self._is_closed = False
        self._process: subprocess.Popen[str] | None = None
        if not is_wanted:
            self._say("samples are not compared with their checksums (data.verify = false)")
            return
        if not all(part.content_sha256 for file in dataset.files for part in file.parts):
            self._say("there are no checksums to compare the samples with")
            return
        try:
            self._process = _start(self._paths)
        except OSError as error:
            self._say_not_all(f"cannot start a process: {error.strerror}")
            return
        self._listening = threading.Thread(
            target=self._listen, args=(self._process,), name="dataset check", daemon=True
        )
        self._listening.start()

    def close(self) -> None:
        """Ends the comparison, and says so if it was incomplete."""
        if self._process is None:
            return
        self._is_closed = True
        self._process.kill()
        self._listening.join()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        """Raises an error if samples differ, which ends the job like any error of a thread."""
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - types
        with process.stdin, process.stdout:
            output = process.stdout.read()
            exit_code = process.wait()
        if exit_code == _DIFFERS:
            key = "data.dataset" if len(self._paths) == 1 else "data.mixture"
            raise RunError(f"{key}: {output}")
        if exit_code == 0:
            self._say("all samples agree with their checksums")
            return
        ended = "the run ended first" if self._is_closed else "the comparison was killed"
        self._say_not_all(output.strip() or ended)

    def _say_not_all(self, reason: str) -> None:
        self._say(
            f"not all samples were compared with their checksums ({reason}); dynapipe-hpc inspect "
            "--verify does"
        )

    def _say(self, what: str) -> None:
        # The line is written in one piece, as the training loop prints at the same time.
        names = ", ".join(map(str, self._paths))
        print(escaped(f"dataset {names}: {what}\n"), end="", flush=True)


def _start(paths: Sequence[Path]) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - this program
        # -P: nothing is imported from the folder where the job was started.
        [sys.executable, "-P", "-m", __name__, *map(str, paths)],
        env={k: v for k, v in os.environ.items() if not k.startswith(_OF_RANKS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def main(paths: Sequence[Path]) -> int:
    """Compares datasets with their checksums, and prints what is wrong with the first bad one."""
    os.nice(_LOWEST_PRIORITY)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for path in paths:
            verify_dataset(path)
    except InputError as error:
        print(printable(str(error)))
        # Training meets unreadable samples by itself and says where.
        return _DIFFERS if isinstance(error, SamplesDifferError) else _UNREADABLE
    return 0


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end closes, as when its process is killed
    os._exit(_ORPHANED)


if __name__ == "__main__":
    sys.exit(main([Path(path) for path in sys.argv[1:]]))
