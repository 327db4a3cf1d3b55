"""Signals that ask a job to stop, and signals that end it immediately."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from signal import Signals

from dynapipe_hpc.job.ending import Ending

_ONE_REQUEST_S = 2.0


class StopRequests:
    """Requests to stop that this process has received as signals.

    SIGUSR1 and SIGTERM ask the process to stop at the next good point. A second SIGTERM, and
    SIGINT, end the job immediately, and so does any signal while requests are not observed. A
    signal that arrives twice, as from Slurm and from `srun`, counts once.

    Attributes:
        asked: The first signal that asked to stop; 0 if none has.
    """

    def __init__(self) -> None:
        """Changes nothing about signals until `listen`."""
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
