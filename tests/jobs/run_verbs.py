"""Ranks that run verbs, one after the other.

    mpiexec -n N python -m tests.jobs.run_verbs FOLDER

The first rank reads the pipe FOLDER/requests until it is closed, a line for each verb: the folder
in which it runs, and its words. To standard output it writes the exit code of each, and by how much
its own peak of memory has grown. What verbs print is appended to FOLDER/out and FOLDER/err.
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import tests.bad_input.kernels  # noqa: F401, before the package loads its own

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.job.world import MPI

PAUSE_S = 0.005
PRINTED = {"out": 1, "err": 2}
"""Names of the files, and the descriptors of what they hold."""


def run_verbs(own_folder: Path) -> None:
    """Runs what is requested until there is nothing more."""
    ranks = MPI.COMM_WORLD.Dup()
    requests = None if ranks.rank else open_requests(own_folder / "requests")
    while request := next_request(ranks, requests):
        folder, *words = json.loads(request)
        before_bytes = peak_bytes()
        os.chdir(folder)
        with printing_into(own_folder):
            try:
                code = main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
                raise
        codes = ranks.gather(code)
        if codes is not None:
            sys.stdout.write(f"{max(codes)} {peak_bytes() - before_bytes}\n")
            sys.stdout.flush()


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def open_requests(pipe: Path) -> TextIO:
    """Opens the pipe, without waiting for a writer, who may have ended."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor)


def next_request(ranks: MPI.Intracomm, requests: TextIO | None) -> str:
    """The next line that the first rank reads; the others, who read none, do not spin meanwhile."""
    if requests is not None:
        request = requests.readline()
        for rank in range(1, ranks.size):
            ranks.send(request, rank)
        return request
    while not ranks.iprobe(source=0):
        time.sleep(PAUSE_S)
    received: str = ranks.recv(source=0)
    return received


@contextmanager
def printing_into(folder: Path) -> Iterator[None]:
    """Redirects what this process prints to the files."""
    kept = {number: os.dup(number) for number in PRINTED.values()}
    for name, number in PRINTED.items():
        file = os.open(folder / name, os.O_APPEND | os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, other in kept.items():
            os.dup2(other, number)
            os.close(other)


if __name__ == "__main__":
    run_verbs(Path(sys.argv[1]))
