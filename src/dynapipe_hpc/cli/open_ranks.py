"""The ranks of a study, as they were started."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.job.launch import read_started
from dynapipe_hpc.job.print_error import print_error

if TYPE_CHECKING:
    from dynapipe_hpc.job.ranks import Ranks


def is_started_alone() -> bool:
    started = read_started(os.environ, n_usable_cores=1)
    return started.launcher is None and started.interface is None


@contextmanager
def open_ranks() -> "Iterator[Ranks]":
    """The ranks that a launcher started; one alone needs no MPI, which login nodes often lack."""
    if is_started_alone():
        from dynapipe_hpc.job.ranks import Alone

        # As under MPI: what runs on after a thread has failed may write what it must not.
        threading.excepthook, hook = _end, threading.excepthook
        try:
            yield Alone()
        finally:
            threading.excepthook = hook
        return
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        yield job


def _end(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_type is SystemExit:
        return
    if not isinstance(uncaught.exc_value, RunError):
        threading.__excepthook__(uncaught)
    print_error(str(uncaught.exc_value))
    os._exit(1)
