"""Asynchronous progress: answering one-sided accesses while a rank computes."""

import atexit
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_PAUSE_S = 0.2e-3
# The thread needs the interpreter lock twice per answer. A thread that runs pure Python keeps the
# lock for this long, 5 ms by default.
_SWITCH_INTERVAL_S = 0.5e-3


@dataclass(frozen=True, slots=True)
class AccessProgress:
    """Mechanism that answers accesses of planners to a leader's memory.

    Attributes:
        mechanism: rma: the MPI library and the network on their own; thread: a thread of the
            rank that owns the memory.
        reason: Reason for the choice, for the log.
    """

    mechanism: Literal["rma", "thread"]
    reason: str

    def __str__(self) -> str:
        """One line for the log."""
        helped = {"rma": "", "thread": " with a progress thread per host"}
        return f"plan store: one-sided access{helped[self.mechanism]} ({self.reason})"


class ProgressThread:
    """A thread that enters MPI every 0.2 ms, which lets MPI answer other ranks.

    It takes a few percent of a core, and makes threads that run pure Python hand over the
    interpreter lock after 0.5 ms instead of 5.
    """

    def __init__(self, enter_mpi: Callable[[], object]) -> None:
        """Starts calling `enter_mpi`."""
        self._enter_mpi = enter_mpi
        self._stopped = threading.Event()
        self._old_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()
        # A job that ends early does not close the store, but the thread must end before MPI does.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the calls; may be called more than once."""
        atexit.unregister(self.stop)
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            sys.setswitchinterval(self._old_interval_s)

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            self._enter_mpi()
