"""Signs of life of a process on another host: it touches a file regularly."""

import os
import time
from pathlib import Path

from dynapipe_hpc.job.print_error import print_error

BEAT_S = 2.0
"""Time between two touches."""
PATIENCE_S = 30.0
"""Time without a touch after which a process counts as dead."""
_PAUSE_S = 0.05


def gives_sign(path: Path, who: str, patience_s: float) -> bool:
    """Whether the time of a file changes; needs no clock that hosts share.

    Returns as soon as the time changes. After a while without a change it says which process it
    is waiting for.

    Args:
        path: The file.
        who: Human-readable name of the process that should touch it.
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
            print_error(f"{who}, gives no sign of life; waiting up to {patience_s:g} s for one")
    return False


def _time_of(path: Path) -> int | None:
    """The time of the last sign; None if the file is gone.

    The file is opened, as only then NFS clients ask their server rather than their cache.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(file).st_mtime_ns
    finally:
        os.close(file)
