"""Waiting for a word that nobody announces."""

import time
from collections.abc import Callable

_SHORTEST_PAUSE_S = 20e-6


def poll(ready: Callable[[], bool], timeout_s: float, longest_pause_s: float) -> bool:
    """Asks until the answer is yes; returns whether it was within `timeout_s`.

    Pauses for a tenth of the time waited so far, so that waiting takes at most a tenth longer
    than it must, and up to `longest_pause_s`, so that a long wait leaves the core to others.
    A short pause only offers the core: a sleep would take longer than asked for.
    """
    start_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            return False
        pause_s = min(waited_s / 10, longest_pause_s)
        time.sleep(pause_s if pause_s > _SHORTEST_PAUSE_S else 0)
    return True
