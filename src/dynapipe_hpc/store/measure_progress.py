"""Whether a rank's memory can be accessed while the rank does not call MPI."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from dynapipe_hpc.store.progress import Progress

# A busy machine delays an access now and then; if MPI waits for the owner, all are late.
_QUIET_MS = (4.0, 8.0, 16.0)
_MOST_OWNERS = 4

Access = Callable[[int], object]


def choose_progress(comm: MPI.Intracomm, owners: Sequence[int], access: Access) -> Progress:
    """Tries out whether accesses wait for the owner; all ranks together, less than 50 ms.

    Args:
        comm: The ranks of the job.
        owners: Ranks whose memory will be accessed. At most four are tried, evenly spread.
        access: Uses the memory of a rank in every way that the other ranks will.
    """
    if comm.Get_size() == 1:
        return Progress("rma", "a job of one rank")
    longest_ms = 0.0
    for owner in owners[:: -(-len(owners) // _MOST_OWNERS)]:
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
    """Accesses a rank's memory from all others while it does not call MPI; all ranks together.

    Returns:
        The longest that a rank waited for two accesses [ms]; the same on all ranks.
    """
    # Whoever has received this knows that the owner has sent it. The first of two accesses may
    # still find it on its way out of MPI.
    comm.Bcast(np.zeros(1, np.int64), owner)
    started_s = time.perf_counter()
    if comm.Get_rank() == owner:
        be_quiet()
        return float(comm.allreduce(0.0, MPI.MAX))
    access(owner)
    access(owner)
    return float(comm.allreduce(1e3 * (time.perf_counter() - started_s), MPI.MAX))
