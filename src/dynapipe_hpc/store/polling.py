"""Polling: waiting for a change that is not announced."""

import math
import time
from collections.abc import Callable

# A pause of any length takes longer than this, and so does what a busy core is given.
_WITHOUT_PAUSE_S = 50e-6
_MAX_PAUSE_S = 2e-3


def poll(
    ready: Callable[[], bool],
    share: float,
    timeout_s: float = math.inf,
    longest_pause_s: float = _MAX_PAUSE_S,
) -> bool:
    """Calls `ready` until it returns True; returns whether it did so within `timeout_s`.

    After the first 50 us it sleeps between calls, so that a wait never occupies the core that
    another process needs to end it. It sleeps for a `share` of the time waited so far, at most
    `longest_pause_s`, in addition to the some 60 us that the shortest sleep takes. Pauses should be
    short where `ready` enters MPI, as that may be what moves a transfer along.
    """
    start_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            return False
        if waited_s > _WITHOUT_PAUSE_S:
            time.sleep(min(share * waited_s, longest_pause_s))
    return True
