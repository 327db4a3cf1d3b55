"""The end of all ranks of a job from one rank, with one message; signals that ask for it."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import Signals
from threading import Lock, Thread
from typing import NoReturn

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError, escaped
from dynapipe_hpc.job.print_error import print_error
from dynapipe_hpc.job.ranks import JobOutcome, Recorder
from dynapipe_hpc.job.world import MPI

_MAX_ASK_S = 1.0


class FirstClaim:
    """A word that can be claimed once, with one atomic access, by one rank of the world.

    It has an MPI window of its own: accesses to a rank that hangs block all others that are made
    to the same window.
    """

    def __init__(self, owner: int) -> None:
        self._owner = owner
        is_own = MPI.COMM_WORLD.Get_rank() == owner
        self._window = MPI.Win.Allocate(8 if is_own else 0, 1, comm=MPI.COMM_WORLD)
        self._window.Lock_all()
        if is_own:
            self._window.Accumulate(np.zeros(1, np.int64), owner, 0, MPI.REPLACE)
            self._window.Flush(owner)
        MPI.COMM_WORLD.Barrier()

    def claim(self) -> bool | None:
        """Whether no rank has claimed the word before; None if its owner does not answer."""
        answers: list[bool] = []
        # In a thread, because the owner may be the rank that hangs.
        asking = Thread(target=lambda: answers.append(self._swap()), daemon=True)
        asking.start()
        asking.join(_MAX_ASK_S)
        return answers[0] if answers else None

    def close(self) -> None:
        MPI.COMM_WORLD.Barrier()
        self._window.Unlock_all()
        self._window.Free()

    def _swap(self) -> bool:
        claim = np.zeros(1, np.int64)
        with suppress(MPI.Exception):
            self._window.Fetch_and_op(np.ones(1, np.int64), claim, self._owner, 0, MPI.REPLACE)
            self._window.Flush(self._owner)
        return not claim[0]


INTERRUPTED = 130  # as a shell says it: 128 + SIGINT
_MAX_WAIT_S = 10.0
_UNTIL_READ_S = 0.2
_UNTIL_RECORDED_S = 1.0
_UNTIL_SAID_S = 2.0


class Ending:
    """The end of a job: only the rank that fails first says why.

    A failure on one rank soon causes failures on others. One word in the first rank's memory,
    which ranks swap atomically, decides who may print the message. If the first rank does not
    answer, a word on another host decides. If that does not answer either, one message too many is
    better than none. The `recorder` writes down how the job ends, besides the message.
    """

    def __init__(self) -> None:
        """Decides among the threads of this process only, until `open` is called."""
        self._words: list[FirstClaim] = []
        self._lock = Lock()
        self.recorder: Recorder | None = None

    def open(self) -> None:
        """Decides among all ranks from now on; called by all ranks together."""
        self._words = [FirstClaim(owner) for owner in _first_ranks_of_two_hosts(MPI.COMM_WORLD)]

    def close(self) -> None:
        """Releases the words; called by all ranks together."""
        for word in self._words:
            word.close()

    def end(self, error: BaseException) -> NoReturn:
        """Prints the error and ends all ranks; if another rank already does so, waits for that."""
        self.wait_unless_first()
        self.end_as_first(error)

    def end_as_first(self, error: BaseException) -> NoReturn:
        """Prints the error and ends all ranks, after `claim` or `wait_unless_first` here."""
        trace = [] if isinstance(error, RunError) else traceback.format_exception(error)
        who = f"rank {MPI.COMM_WORLD.Get_rank()} on {MPI.Get_processor_name()}"
        sys.stderr.write(escaped("".join(trace)))
        self._say_last(f"{who} ends the job: {error}", JobOutcome.FAILED, 1)
        _abort(1)

    def interrupt(self, number: Signals) -> NoReturn:
        """Ends all ranks immediately because of a signal."""
        # Before `open` there is no word to decide with, and all ranks would print the message.
        is_first = MPI.COMM_WORLD.Get_rank() == 0
        if self.claim() if self._words else is_first:
            self._say_last(f"ended by {number.name}", JobOutcome.INTERRUPTED, INTERRUPTED)
        else:
            # The rank that prints the message ends the job; ended from here, it might not print it.
            time.sleep(_UNTIL_SAID_S)
        if MPI.COMM_WORLD.Get_size() > 1:
            _abort(INTERRUPTED)
        os._exit(INTERRUPTED)

    def record(self, how: JobOutcome, exit_code: int, message: str) -> None:
        """Records how the job ends; a disk that fails or hangs does not keep it from ending."""
        self._start_to_record(how, exit_code, message).join(_UNTIL_RECORDED_S)

    def _say_last(self, message: str, how: JobOutcome, exit_code: int) -> None:
        print_error(message)
        recording = self._start_to_record(how, exit_code, message)
        # A launcher that is told to end the job may discard output that it has not read yet.
        time.sleep(_UNTIL_READ_S)
        recording.join(_UNTIL_RECORDED_S)

    def _start_to_record(self, how: JobOutcome, exit_code: int, message: str) -> Thread:
        def record() -> None:
            with suppress(InputError, RunError, OSError):
                if self.recorder is not None:
                    self.recorder(how, exit_code, message)

        recording = Thread(target=record, name="record of the end", daemon=True)
        recording.start()
        return recording

    def wait_unless_first(self) -> None:
        """Returns on the first rank; others wait for the end of the job."""
        if not self.claim():
            time.sleep(_MAX_WAIT_S)
            os._exit(1)

    def claim(self) -> bool:
        """Whether this call is the first on any rank, so that it may print why the job ends."""
        if not self._lock.acquire(blocking=False):
            return False
        answers = (word.claim() for word in self._words)
        return next((answer for answer in answers if answer is not None), True)


def _first_ranks_of_two_hosts(world: MPI.Intracomm) -> list[int]:
    on_host = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.Get_rank())
    is_with_first = on_host.bcast(world.Get_rank() == 0, root=0)
    on_host.Free()
    first = world.allreduce(world.Get_size() if is_with_first else world.Get_rank(), MPI.MIN)
    return [0, first] if first < world.Get_size() else [0]


def _abort(exit_code: int) -> NoReturn:
    # A launcher that is already ending the job may not answer. Then the alarm ends this process,
    # and the others on the host see that it is gone.
    signal.alarm(int(_MAX_WAIT_S))
    MPI.COMM_WORLD.Abort(exit_code)
    raise AssertionError("MPI_Abort returned")


_ONE_REQUEST_S = 2.0


class StopRequests:
    """Requests to stop that this process has received as signals; `asked` is the first, or 0.

    SIGUSR1 and SIGTERM ask the process to stop at the next good point. A second SIGTERM, and
    SIGINT, end the job immediately, and so does any signal while requests are not observed. A
    signal that arrives twice, as from Slurm and from `srun`, counts once.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._is_observed = False
        self._first_s = 0.0

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Marks a block that checks `asked` from time to time."""
        self._is_observed = True
        try:
            yield
        finally:
            self._is_observed = False

    def listen(self, ending: Ending) -> None:
        """Answers signals from now on, even while the main thread is inside C code."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        for number in (Signals.SIGINT, Signals.SIGTERM, Signals.SIGUSR1):
            signal.signal(number, lambda *_: None)
        answering = threading.Thread(
            target=self._answer_all, args=(reading, ending), name="signals", daemon=True
        )
        answering.start()

    def _answer_all(self, reading: int, ending: Ending) -> None:
        while True:
            number = Signals(os.read(reading, 1)[0])
            if self._ends(number):
                ending.interrupt(number)
            if not self.asked:
                self.asked, self._first_s = number, time.monotonic()

    def _ends(self, number: Signals) -> bool:
        if number is Signals.SIGINT:
            return True
        if self.asked and time.monotonic() - self._first_s < _ONE_REQUEST_S:
            return False
        # Slurm sends SIGTERM some time before it kills, perhaps after SIGUSR1.
        is_second = number is Signals.SIGTERM and self.asked == Signals.SIGTERM
        return is_second or not self._is_observed
