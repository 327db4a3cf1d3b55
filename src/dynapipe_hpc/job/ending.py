"""How one rank ends the whole job, with one message."""

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
    """Lets the rank that fails first say why the job ends, and nobody else.

    What goes wrong on one rank soon goes wrong on others. Who may speak is decided by one word in
    the first rank's memory, which ranks swap by themselves; if that rank does not let them, one
    message too many is better than none.
    """

    def __init__(self) -> None:
        """Decides among the threads of this process, until `open` has been called."""
        self._window: MPI.Win | None = None
        self._lock = Lock()

    def open(self) -> None:
        """From now on decides among all ranks; all together."""
        is_first = MPI.COMM_WORLD.Get_rank() == 0
        self._window = MPI.Win.Allocate(8 if is_first else 0, 1, comm=MPI.COMM_WORLD)
        self._window.Lock_all()
        if is_first:
            self._window.Accumulate(np.zeros(1, np.int64), 0, 0, MPI.REPLACE)
            self._window.Flush(0)
        MPI.COMM_WORLD.Barrier()

    def close(self) -> None:
        """Releases the word; all ranks together."""
        if self._window is not None:
            MPI.COMM_WORLD.Barrier()
            self._window.Unlock_all()
            self._window.Free()

    def end(self, error: BaseException) -> NoReturn:
        """Says why, and ends all ranks; if another rank does already, waits for that."""
        self.wait_unless_first()
        trace = [] if isinstance(error, RunError) else traceback.format_exception(error)
        who = f"rank {MPI.COMM_WORLD.Get_rank()} on {MPI.Get_processor_name()}"
        sys.stderr.write(escaped("".join(trace)))
        _say_last(f"{who} ends the job: {error}")
        _abort(1)

    def interrupt(self, number: Signals) -> NoReturn:
        """Ends all ranks at once, as a signal demands."""
        # Before `open`, whose word decides, all ranks would speak.
        is_first = MPI.COMM_WORLD.Get_rank() == 0
        if self.claim() if self._window is not None else is_first:
            _say_last(f"ended by {number.name}")
        if MPI.COMM_WORLD.Get_size() > 1:
            _abort(INTERRUPTED)
        os._exit(INTERRUPTED)

    def wait_unless_first(self) -> None:
        """Returns on the first rank that calls it; elsewhere waits to be ended."""
        if not self.claim():
            time.sleep(_LONGEST_WAIT_S)
            os._exit(1)

    def claim(self) -> bool:
        """Whether this is the first call of all ranks, which may say why the job ends."""
        if not self._lock.acquire(blocking=False):
            return False
        answers: list[bool] = []
        # A thread, because the first rank may be what hangs.
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
    # A launcher that is told to end the job may close what it has not read yet.
    time.sleep(_UNTIL_READ_S)


def _abort(exit_code: int) -> NoReturn:
    # A launcher that is about to end the job itself may not answer: then the system ends this
    # process, and the others of the host see that it has gone.
    signal.alarm(_LONGEST_WAIT_S)
    MPI.COMM_WORLD.Abort(exit_code)
    raise AssertionError("MPI_Abort returned")
