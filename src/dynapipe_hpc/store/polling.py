"""Polling: waiting for a change that is not announced."""

import time
from collections.abc import Callable

_SHORTEST_PAUSE_S = 20e-6


def poll(ready: Callable[[], bool], timeout_s: float, longest_pause_s: float) -> bool:
    """Calls `ready` until it returns True; returns whether it did so within `timeout_s`.

    It pauses for a tenth of the time waited so far, at most `longest_pause_s`: waiting takes at
    most a tenth longer than necessary, and a long wait leaves the core to others. A very short
    pause only yields the core, because a sleep would take longer than requested.
    """
    start_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            return False
        pause_s = min(waited_s / 10, longest_pause_s)
        time.sleep(pause_s if pause_s > _SHORTEST_PAUSE_S else 0)
    return True
