"""Processes that take the lock on a run folder.

    python -m tests.oracles.lock_processes FOLDER hold|churn

Each prints "ready" and waits for a line. One that holds then prints "held", or says why not, and
gives the lock back when standard input ends. One that churns takes it and gives it back many
times, and the last time does not.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.run_lock import RunLock

READY, HELD = "ready\n", "held\n"
INSIDE = "inside"
N_TIMES = 60


def start_ready(folder: Path, what: str) -> "subprocess.Popen[str]":
    """Starts a process that waits to be told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.oracles.lock_processes", str(folder), what],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == READY
    return process


def tell(process: "subprocess.Popen[str]") -> None:
    """Lets a process begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@contextmanager
def holding(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that holds the lock during the block, unless the block kills it."""
    with start_ready(folder, "hold") as process:
        tell(process)
        assert process.stdout is not None
        assert process.stdout.readline() == HELD
        yield process


def hold(folder: Path) -> None:
    """Holds the lock until standard input ends."""
    lock = RunLock(folder, "Slurm job 7")
    lock.acquire()
    sys.stdout.write(HELD)
    sys.stdout.flush()
    sys.stdin.read()
    lock.release()


def churn(folder: Path) -> None:
    """Takes the lock as often as it can; nobody else may be inside then, whatever locks say."""
    n_taken = 0
    while n_taken < N_TIMES:
        lock = RunLock(folder)
        with suppress(InputError):
            lock.acquire()
            n_taken += 1
            (folder / INSIDE).touch(exist_ok=False)
            (folder / INSIDE).unlink()
            if n_taken < N_TIMES:
                lock.release()


def main(folder: Path, what: str) -> int:
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
    try:
        {"hold": hold, "churn": churn}[what](folder)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
