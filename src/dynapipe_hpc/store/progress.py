"""Progress of one-sided access while a rank computes: a thread, and whether it is needed."""

import atexit
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from mpi4py import MPI

_PAUSE_S = 0.2e-3
# The thread needs the interpreter lock twice per answer. A thread that runs pure Python keeps the
# lock for this long, 5 ms by default.
_SWITCH_INTERVAL_S = 0.5e-3


@dataclass(frozen=True, slots=True)
class AccessProgress:
    """Mechanism that answers accesses to a leader's memory, and the reason for it.

    rma: the MPI library and the network on their own; thread: a thread of the rank that owns it.
    """

    mechanism: Literal["rma", "thread"]
    reason: str

    def __str__(self) -> str:
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


# A busy machine delays some accesses; if MPI waits for the owner, it delays all of them.
_QUIET_MS = (4.0, 8.0, 16.0)
_MAX_OWNERS = 4

Access = Callable[[int], object]


def choose_progress(comm: MPI.Intracomm, owners: Sequence[int], access: Access) -> AccessProgress:
    """The progress mechanism that MPI needs, tried out by all ranks together in less than 50 ms.

    `access` accesses a rank's memory in every way that this rank will. At most four `owners`,
    evenly spread, are tried.
    """
    longest_ms = 0.0
    for owner in owners[:: -(-len(owners) // _MAX_OWNERS)]:
        waited_ms = _shortest_wait_ms(comm, owner, access)
        if waited_ms is None:
            return AccessProgress("thread", f"rank {owner} did not answer while it computed")
        longest_ms = max(longest_ms, waited_ms)
    return AccessProgress("rma", f"ranks that computed answered within {longest_ms:.2g} ms")


def _shortest_wait_ms(comm: MPI.Intracomm, owner: int, access: Access) -> float | None:
    for quiet_ms in _QUIET_MS:
        waited_ms = wait_for_quiet(comm, owner, access, partial(time.sleep, 1e-3 * quiet_ms))
        if waited_ms < quiet_ms / 2:
            return waited_ms
    return None


def wait_for_quiet(
    comm: MPI.Intracomm, owner: int, access: Access, be_quiet: Callable[[], object]
) -> float:
    """Longest of two accesses to a rank's memory while it does not call MPI, in ms, on all ranks.

    Called by all ranks together; all except the owner access its memory.
    """
    # A rank that has received this knows that the owner has sent it. The owner may still be inside
    # MPI during the first of two accesses.
    comm.Bcast(np.zeros(1, np.int64), owner)
    started_s = time.perf_counter()
    if comm.Get_rank() == owner:
        be_quiet()
        return float(comm.allreduce(0.0, MPI.MAX))
    access(owner)
    access(owner)
    return float(comm.allreduce(1e3 * (time.perf_counter() - started_s), MPI.MAX))
