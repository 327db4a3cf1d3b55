"""Ending all ranks of a job from one rank, with one message."""

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from signal import Signals
from threading import Lock, Thread
from typing import NoReturn

import numpy as np

from dynapipe_hpc.data.errors import RunError, escaped
from dynapipe_hpc.job.say import say
from dynapipe_hpc.job.world import MPI

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT
_LONGEST_ASK_S = 2.0
_LONGEST_WAIT_S = 10
_UNTIL_READ_S = 0.2


class Ending:
    """The end of a job: only the rank that fails first says why.

    A failure on one rank soon causes failures on others. One word in the first rank's memory,
    which ranks swap atomically, decides who may print the message. If the first rank does not
    answer, one message too many is better than none.
    """

    def __init__(self) -> None:
        """Decides among the threads of this process only, until `open` is called."""
        self._window: MPI.Win | None = None
        self._lock = Lock()

    def open(self) -> None:
        """Decides among all ranks from now on; called by all ranks together."""
        is_first = MPI.COMM_WORLD.Get_rank() == 0
        self._window = MPI.Win.Allocate(8 if is_first else 0, 1, comm=MPI.COMM_WORLD)
        self._window.Lock_all()
        if is_first:
            self._window.Accumulate(np.zeros(1, np.int64), 0, 0, MPI.REPLACE)
            self._window.Flush(0)
        MPI.COMM_WORLD.Barrier()

    def close(self) -> None:
        """Releases the word; called by all ranks together."""
        if self._window is not None:
            MPI.COMM_WORLD.Barrier()
            self._window.Unlock_all()
            self._window.Free()

    def end(self, error: BaseException) -> NoReturn:
        """Prints the error and ends all ranks; if another rank already does so, waits for that."""
        self.wait_unless_first()
        trace = [] if isinstance(error, RunError) else traceback.format_exception(error)
        who = f"rank {MPI.COMM_WORLD.Get_rank()} on {MPI.Get_processor_name()}"
        sys.stderr.write(escaped("".join(trace)))
        _say_last(f"{who} ends the job: {error}")
        _abort(1)

    def interrupt(self, number: Signals) -> NoReturn:
        """Ends all ranks immediately because of a signal."""
        # Before `open` there is no word to decide with, and all ranks would print the message.
        is_first = MPI.COMM_WORLD.Get_rank() == 0
        if self.claim() if self._window is not None else is_first:
            _say_last(f"ended by {number.name}")
        if MPI.COMM_WORLD.Get_size() > 1:
            _abort(INTERRUPTED)
        os._exit(INTERRUPTED)

    def wait_unless_first(self) -> None:
        """Returns on the first rank that calls it; on others waits for the end of the job."""
        if not self.claim():
            time.sleep(_LONGEST_WAIT_S)
            os._exit(1)

    def claim(self) -> bool:
        """Whether this call is the first on any rank, so that it may say why the job ends."""
        if not self._lock.acquire(blocking=False):
            return False
        answers: list[bool] = []
        # In a thread, because the first rank may be the one that hangs.
        asking = Thread(target=lambda: answers.append(self._swap()), daemon=True)
        asking.start()
        asking.join(_LONGEST_ASK_S)
        return answers != [False]

    def _swap(self) -> bool:
        if self._window is None:
            return True
        found = np.zeros(1, np.int64)
        with suppress(MPI.Exception):
            self._window.Fetch_and_op(np.ones(1, np.int64), found, 0, 0, MPI.REPLACE)
            self._window.Flush(0)
        return not found[0]


def _say_last(message: str) -> None:
    say(message)
    # A launcher that is told to end the job may discard output that it has not read yet.
    time.sleep(_UNTIL_READ_S)


def _abort(exit_code: int) -> NoReturn:
    # A launcher that is already ending the job may not answer. Then the alarm ends this process,
    # and the others on the host see that it is gone.
    signal.alarm(_LONGEST_WAIT_S)
    MPI.COMM_WORLD.Abort(exit_code)
    raise AssertionError("MPI_Abort returned")
