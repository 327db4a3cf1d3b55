"""The ranks of an MPI job: collectives, agreement on errors, and a common end."""

import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from threading import Lock, Thread
from typing import NoReturn, TypeVar

import numpy as np

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError, RunError, escaped, print_error
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.job.world import MPI

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT
_MAX_WAIT_S = 10.0
_MAX_ASK_S = 1.0
_UNTIL_READ_S = 0.2
_UNTIL_RECORDED_S = 1.0
_UNTIL_SAID_S = 2.0


class Ending:
    """The end of a job: only the rank that fails first says why.

    A failure on one rank soon causes failures on others. In a run, the rank that creates the
    record of the end in the run folder may print its message. If the file system does not answer,
    every rank may: one message too many is better than none. Elsewhere rank 0 gets time to print.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.file: Path | None = None  # records how the job ends, beside the message
        self._is_claimed_by_file = False

    @contextmanager
    def recorded(self, file: Path) -> Iterator[None]:
        """Only the rank that records the end may print, until the block ends well.

        Then the job writes the record, and ranks that fail later print as if outside a run.
        """
        self.file, self._is_claimed_by_file = file, True
        yield
        self._is_claimed_by_file = False

    def end(self, error: BaseException) -> NoReturn:
        """Prints the error and ends all ranks; if another rank already does so, waits for that."""
        self.wait_unless_first()
        self.end_as_first(error)

    def end_as_first(self, error: BaseException) -> NoReturn:
        """Prints the error and ends all ranks; call it after `claim` or `wait_unless_first`."""
        trace = [] if isinstance(error, RunError) else traceback.format_exception(error)
        who = f"rank {MPI.COMM_WORLD.Get_rank()} on {MPI.Get_processor_name()}"
        sys.stderr.write(escaped("".join(trace)))
        self._say_last(f"{who} ends the job: {error}", JobOutcome.FAILED, 1)
        _abort(1)

    def interrupt(self, number: Signals) -> NoReturn:
        """Ends all ranks immediately because of a signal."""
        if self.claim():
            self._say_last(f"ended by {number.name}", JobOutcome.INTERRUPTED, INTERRUPTED)
        else:
            # The rank that prints the message ends the job; ended from here, it might not print it.
            time.sleep(_UNTIL_SAID_S)
        if MPI.COMM_WORLD.Get_size() > 1:
            _abort(INTERRUPTED)
        os._exit(INTERRUPTED)

    def record(self, how: JobOutcome, exit_code: int, message: str) -> None:
        """Records how the job ends; a disk that fails or hangs does not prevent the end."""
        self._start_to_record(how, exit_code, message).join(_UNTIL_RECORDED_S)

    def _say_last(self, message: str, how: JobOutcome, exit_code: int) -> None:
        print_error(message)
        recording = self._start_to_record(how, exit_code, message)
        # A launcher that has to end the job may discard output that it has not read yet.
        time.sleep(_UNTIL_READ_S)
        recording.join(_UNTIL_RECORDED_S)

    def _start_to_record(self, how: JobOutcome, exit_code: int, message: str) -> Thread:
        def record() -> None:
            with suppress(InputError, RunError, OSError):
                if self.file is not None:
                    _write_end(self.file, how, exit_code, message)

        recording = Thread(target=record, name="record of the end", daemon=True)
        recording.start()
        return recording

    def wait_unless_first(self) -> None:
        """Returns on the rank that fails first; other ranks wait for the end of the job."""
        if not self.claim():
            time.sleep(_MAX_WAIT_S)
            os._exit(1)

    def claim(self) -> bool:
        """Whether this call is the first on any rank, so that it may print why the job ends."""
        if not self._lock.acquire(blocking=False):
            return False
        file = self.file
        if file is None or not self._is_claimed_by_file:
            if MPI.COMM_WORLD.Get_rank():
                time.sleep(_UNTIL_SAID_S)
            return True
        answers: list[bool] = []
        # In a thread, because the file system may be what hangs.
        asking = Thread(target=lambda: answers.append(_creates(file)), daemon=True)
        asking.start()
        asking.join(_MAX_ASK_S)
        return answers != [False]


def _write_end(file: Path, how: JobOutcome, exit_code: int, message: str) -> None:
    now = datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")
    host = platform.node()
    ended = {"how": how, "exit_code": exit_code, "message": message, "time": now, "host": host}
    # The job ends now: nobody waits for the disk.
    with atomic_write(file, lasting=False) as temporary:
        temporary.write_text(json.dumps(ended) + "\n", encoding="utf-8")


def _creates(file: Path) -> bool:
    """Whether there was no such file; also true where the file system fails."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


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


T = TypeVar("T")


class Job:
    """A rank's view of its MPI job; a process started alone is a job of one rank.

    `is_first` says whether this rank speaks for the job.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        ending: Ending | None = None,
        stop: StopRequests | None = None,
    ) -> None:
        """Joins the ranks of `comm`; a part of a job ends and stops with the entire job."""
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.is_first = self.rank == 0
        self.ending, self.stop = ending or Ending(), stop or StopRequests()

    def divide(self, part: int) -> "Job":
        """A job of the ranks that pass the same `part`, in rank order; called by all together."""
        return self._of(self.comm.Split(color=part, key=self.rank))

    def on_this_host(self) -> "Job":
        """A job of the ranks on this rank's host, in rank order; called by all together."""
        return self._of(self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))

    def free(self) -> None:
        """Releases the communicator of a job that is part of another; called by all its ranks."""
        self.comm.Free()

    def barrier(self) -> None:
        self.comm.Barrier()

    def gather(self, value: T) -> list[T]:
        """Gather: the values of all ranks, by rank, on the first rank; an empty list elsewhere."""
        return self.comm.gather(value, root=0) or []

    def broadcast(self, value: T) -> T:
        """Broadcast: the first rank's value, on all ranks."""
        shared: T = self.comm.bcast(value, root=0)
        return shared

    def exchange(self, values: Sequence[T]) -> list[T]:
        """All-to-all: every rank has a value for each rank; returns this rank's, by sender."""
        return self.comm.alltoall(list(values))

    def all_gather_int(self, number: int) -> list[int]:
        """All-gather: the number (0 to 2**64 - 1) of every rank, by rank, on all ranks."""
        numbers = np.empty(self.size, np.uint64)
        self.comm.Allgather(np.array([number], np.uint64), numbers)
        values: list[int] = numbers.tolist()
        return values

    def is_same_on_all(self, number: int) -> bool:
        """All-reduce: whether all ranks pass the same number (0 to 2**64 - 1)."""
        own_numbers = np.array([number, 2**64 - 1 - number], np.uint64)
        least = np.empty_like(own_numbers)
        self.comm.Allreduce(own_numbers, least, MPI.MIN)
        # The least complement belongs to the largest number.
        return bool(np.array_equal(least, own_numbers))

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """All-reduce: for each number (float64), its sum over ranks, on all ranks."""
        return self._reduced(numbers, MPI.SUM)

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """All-reduce: for each number (float64), its largest value over ranks, on all ranks."""
        return self._reduced(numbers, MPI.MAX)

    def _of(self, comm: MPI.Comm) -> "Job":
        return Job(MPI.Intracomm(comm), self.ending, self.stop)

    def _reduced(self, numbers: Sequence[float], operation: MPI.Op) -> list[float]:
        own_numbers = np.array(numbers, np.float64)
        reduced = np.empty_like(own_numbers)
        self.comm.Allreduce(own_numbers, reduced, operation)
        values: list[float] = reduced.tolist()
        return values

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Runs a block on all ranks, which all exit if any of them raises an error for the user."""
        answer: tuple[str, int] | None = None
        try:
            yield
        except (InputError, RunError, OSError) as error:
            answer = str(error), 1 if isinstance(error, RunError) else 2
        answers = [a for a in self.comm.allgather(answer) if a is not None]
        if not answers:
            return
        exit_code = max(code for _, code in answers)
        if self.is_first:
            messages = list(dict.fromkeys(message for message, _ in answers))
            for message in messages:
                print_error(message)
            self.ending.record(JobOutcome.FAILED, exit_code, "\n".join(messages))
        raise SystemExit(exit_code)

    def on_first(self, make: Callable[[], T]) -> T:
        """Calls a function on the first rank; all ranks return its result or raise its error."""
        results: list[T] = []
        with self.fail_together():
            if self.is_first:
                results.append(make())
        return self.broadcast(results)[0]

    def say(self, text: str) -> None:
        """Prints a line on the first rank, safe for a terminal whatever names are in it."""
        if self.is_first:
            print(escaped(text), flush=True)


@contextmanager
def open_job() -> Iterator[Job]:
    """Joins the job; a later error on one rank ends all of them and prints its cause.

    An uncaught error in a thread counts as one that leaves the block. Without this, the peers
    of a rank that failed would wait for it forever. `SystemExit` leaves the block on all ranks
    together, as `Job.fail_together` raises it.
    """
    job = Job(MPI.COMM_WORLD)
    job.stop.listen(job.ending)

    def end(uncaught: threading.ExceptHookArgs) -> None:
        job.ending.end(uncaught.exc_value or uncaught.exc_type())

    threading.excepthook = end
    try:
        yield job
    except SystemExit:
        raise
    except BaseException as error:
        job.ending.end(error)
