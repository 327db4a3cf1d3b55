"""Ending all ranks of a job from one rank, with one message."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from signal import Signals
from threading import Lock, Thread
from typing import NoReturn

from dynapipe_hpc.data.errors import InputError, RunError, escaped
from dynapipe_hpc.job.first_claim import FirstClaim
from dynapipe_hpc.job.job_outcome import JobOutcome, Recorder, record_nothing
from dynapipe_hpc.job.print_error import print_error
from dynapipe_hpc.job.world import MPI

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT
_MAX_WAIT_S = 10.0
_PAUSE_S = 0.02
_UNTIL_READ_S = 0.2
_UNTIL_RECORDED_S = 1.0
_UNTIL_SAID_S = 2.0


class Ending:
    """The end of a job: only the rank that fails first says why.

    A failure on one rank soon causes failures on others. One word in the first rank's memory,
    which ranks swap atomically, decides who may print the message. If the first rank does not
    answer, a word on another host decides. If that does not answer either, one message too many is
    better than none.

    Attributes:
        recorder: Writes down how the job ends, besides the message.
    """

    def __init__(self) -> None:
        """Decides among the threads of this process only, until `open` is called."""
        self._words: list[FirstClaim] = []
        self._lock = Lock()
        self.recorder: Recorder = record_nothing

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
                self.recorder(how, exit_code, message)

        recording = Thread(target=record, name="record of the end", daemon=True)
        recording.start()
        return recording

    def wait_unless_first(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Returns on the first rank that calls it; on others waits for the end of the job.

        Args:
            meanwhile: What to do again and again while waiting.
        """
        if self.claim():
            return
        end_s = time.monotonic() + _MAX_WAIT_S
        while time.monotonic() < end_s:
            meanwhile()
            time.sleep(_PAUSE_S)
        os._exit(1)

    def claim(self) -> bool:
        """Whether this call is the first on any rank, so that it may print why the job ends."""
        if not self._lock.acquire(blocking=False):
            return False
        answers = (word.claim() for word in self._words)
        return next((answer for answer in answers if answer is not None), True)


def _first_ranks_of_two_hosts(world: MPI.Intracomm) -> list[int]:
    """Rank 0 and the first rank that is not on its host, if there is one."""
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
