"""Whether someone out of sight touches a file from time to time."""

import os
import time
from pathlib import Path

from dynapipe_hpc.job.say import say

BEAT_S = 2.0
"""Time between two signs."""
PATIENCE_S = 30.0
"""Silence after which a holder is taken for dead."""
_PAUSE_S = 0.05


def gives_sign(path: Path, who: str, patience_s: float) -> bool:
    """Watches the time of a file, rather than compare it with a clock of another host.

    Returns as soon as the time changes. If that takes longer than it should, says who is waited
    for.

    Args:
        path: The file.
        who: Whoever should touch it, for people.
        patience_s: Longest time to watch.
    """
    first, start_s = _time_of(path), time.monotonic()
    is_told = False
    while first is not None and time.monotonic() < start_s + patience_s:
        time.sleep(_PAUSE_S)
        if (now := _time_of(path)) != first:
            return now is not None
        if not is_told and time.monotonic() > start_s + 2 * BEAT_S:
            is_told = True
            say(f"{who}, gives no sign of life; waiting up to {patience_s:g} s for one")
    return False


def _time_of(path: Path) -> int | None:
    """The time of the last sign; None if the file is gone.

    Opened, as clients of NFS ask their server then, and otherwise remember for a while.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(file).st_mtime_ns
    finally:
        os.close(file)
