"""Test of asynchronous progress: can a rank's memory be accessed while it does not call MPI?"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.store.progress import Progress

# A busy machine delays some accesses; if MPI waits for the owner, it delays all of them.
_QUIET_MS = (4.0, 8.0, 16.0)
_MAX_OWNERS = 4

Access = Callable[[int], object]


def choose_progress(comm: MPI.Intracomm, owners: Sequence[int], access: Access) -> Progress:
    """The progress mechanism that MPI needs, tried out by all ranks together in less than 50 ms.

    Args:
        comm: The ranks that access memory, or own it.
        owners: Ranks of `comm` whose memory will be accessed; at most four of them are tried,
            evenly spread.
        access: Function that accesses a rank's memory in every way that this rank will.
    """
    longest_ms = 0.0
    for owner in owners[:: -(-len(owners) // _MAX_OWNERS)]:
        waited_ms = _shortest_wait_ms(comm, owner, access)
        if waited_ms is None:
            return Progress("thread", f"rank {owner} did not answer while it computed")
        longest_ms = max(longest_ms, waited_ms)
    return Progress("rma", f"ranks that computed answered within {longest_ms:.2g} ms")


def _shortest_wait_ms(comm: MPI.Intracomm, owner: int, access: Access) -> float | None:
    for quiet_ms in _QUIET_MS:
        waited_ms = wait_for_quiet(comm, owner, access, partial(time.sleep, 1e-3 * quiet_ms))
        if waited_ms < quiet_ms / 2:
            return waited_ms
    return None


def wait_for_quiet(
    comm: MPI.Intracomm, owner: int, access: Access, be_quiet: Callable[[], object]
) -> float:
    """Measures how long accesses to a rank's memory take while it does not call MPI.

    Called by all ranks together; all except the owner access its memory.

    Returns:
        Longest time that a rank needed for two accesses, in ms; the same on all ranks.
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
