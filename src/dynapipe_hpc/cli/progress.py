"""Progress bars and progress lines of long jobs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

LINE_EVERY_S = 10.0
MIN_SHARE = 0.05
"""Smallest finished share of the work from which the time left is estimated."""


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without tqdm's thread, which would take signals that `open_pool` holds back."""

    monitor_interval = 0


Show = Callable[..., None]
"""Shows the finished share of a job, None if it is unknown, and perhaps more text."""


@contextmanager
def share_progress(title: str, *, shown: bool = True) -> Iterator[Show]:
    """Shows the finished share of a job and the time left, on standard error.

    It is a bar on a terminal, and an occasional plain line in a batch log.
    """
    start_s = time.perf_counter()
    next_line_s = LINE_EVERY_S
    layout = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}{postfix}"
    on_terminal = shown and sys.stderr.isatty()

    def show(share: float | None, more: str = "", /) -> None:
        nonlocal next_line_s
        elapsed_s = time.perf_counter() - start_s
        left = "" if share is None else time_left(share, elapsed_s)
        bar.set_postfix_str(", ".join(filter(None, (left, more))), refresh=False)
        bar.update(0 if share is None else share - bar.n)
        if shown and not on_terminal and elapsed_s >= next_line_s:
            done = "" if share is None else f"{100 * share:.0f} % done"
            sys.stderr.write(f"{title}: {', '.join(filter(None, (done, left, more)))}\n")
            next_line_s = elapsed_s + LINE_EVERY_S

    with _Bar(total=1.0, desc=title, bar_format=layout, disable=not on_terminal) as bar:
        yield show


def time_left(share: float, elapsed_s: float) -> str:
    """The time left at the same speed, as text; empty while too little is done to estimate it."""
    return f"{elapsed_s * (1 - share) / share:.0f} s left" if share >= MIN_SHARE else ""
