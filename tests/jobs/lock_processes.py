"""Processes that take the lock on a run folder.

    python -m tests.jobs.lock_processes FOLDER hold|churn

Each prints "ready" and waits for a line. One that holds then prints "held", or says why not, and
gives the lock back when standard input ends. One that churns has it taken many times.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.run_lock import RunLock

READY, HELD = "ready\n", "held\n"
INSIDE, INSIDE_S = "inside", 0.003
N_TIMES = 30


def start_ready(folder: Path, what: str) -> "subprocess.Popen[str]":
    """Starts a process that waits to be told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.lock_processes", str(folder), what],
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


def leave_lock(folder: Path, **changes: Any) -> Path:
    """Writes the lock of a process on another host, which this one cannot see."""
    process = {"boot": "that of n9", "names": "pid:[1]", "pid": 12, "started": "34"}
    facts = {"host": "n9", "job": "Slurm job 7", "since": "2026-01-02 03:04:05 UTC"}
    path = folder / ".lock" / "0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**facts, "process": process, **changes}))
    return path


def hold(folder: Path) -> None:
    """Holds the lock until standard input ends."""
    lock = RunLock(folder, "Slurm job 7")
    lock.acquire()
    sys.stdout.write(HELD)
    sys.stdout.flush()
    sys.stdin.read()
    lock.release()


def churn(folder: Path) -> None:
    """Processes one after the other take the lock; every other one dies with it."""
    for turn in range(N_TIMES):
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            if status:
                raise InputError(f"turn {turn}: somebody else was inside")
        else:
            os._exit(_take_once(folder, dies=turn % 2 == 0))


def _take_once(folder: Path, *, dies: bool) -> int:
    """Nobody else may be inside while the lock is held, whatever locks say."""
    while True:
        lock = RunLock(folder)
        with suppress(InputError):
            lock.acquire()
            break
    try:
        (folder / INSIDE).touch(exist_ok=False)
    except FileExistsError:
        return 1
    time.sleep(INSIDE_S)
    (folder / INSIDE).unlink()
    if not dies:
        lock.release()
    return 0


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
