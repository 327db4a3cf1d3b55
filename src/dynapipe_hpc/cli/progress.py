"""Progress bars and progress lines of long jobs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

LINE_EVERY_S = 10.0
MIN_SHARE = 0.05
"""Smallest finished share of the work from which the time left is estimated."""


@dataclass(slots=True)
class TextProgress:
    """Progress over bytes of text, with tokens per second.

    It is a bar on a terminal, and an occasional plain line in a batch log.
    """

    bar: "tqdm[None]"
    start_s: float = field(default_factory=time.perf_counter)
    next_line_s: float = LINE_EVERY_S

    def show(self, n_bytes: int, n_tokens: int) -> None:
        """Shows how many bytes and tokens are done since the start."""
        elapsed_s = time.perf_counter() - self.start_s
        rate = f"{n_tokens / elapsed_s:,.0f} tokens/s"
        self.bar.set_postfix_str(rate, refresh=False)
        self.bar.update(n_bytes - self.bar.n)
        if self.bar.disable and elapsed_s >= self.next_line_s:
            done = f"{n_bytes:,} bytes"
            if self.bar.total is not None:
                done = f"{100 * n_bytes / max(1, self.bar.total):.0f} %"
            sys.stderr.write(f"{done} done, {n_tokens:,} tokens, {rate}\n")
            self.next_line_s = elapsed_s + LINE_EVERY_S


@contextmanager
def text_progress(total_bytes: int | None) -> Iterator[TextProgress]:
    """Shows the progress over bytes of text, on standard error; None if their number is unknown."""
    on_terminal = sys.stderr.isatty()
    with tqdm(total=total_bytes, unit="B", unit_scale=True, disable=not on_terminal) as bar:
        yield TextProgress(bar)


@contextmanager
def share_progress(title: str, *, shown: bool) -> Iterator[Callable[[float], None]]:
    """Shows the finished share of a job and the time left, on standard error.

    It is a bar on a terminal, and an occasional plain line in a batch log.
    """
    start_s = time.perf_counter()
    next_line_s = LINE_EVERY_S
    layout = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}{postfix}"
    on_terminal = shown and sys.stderr.isatty()

    def show(share: float) -> None:
        nonlocal next_line_s
        elapsed_s = time.perf_counter() - start_s
        left = time_left(share, elapsed_s)
        bar.set_postfix_str(left, refresh=False)
        bar.update(share - bar.n)
        if shown and not on_terminal and elapsed_s >= next_line_s:
            parts = [f"{title}: {100 * share:.0f} % done", *([left] if left else ())]
            sys.stderr.write(f"{', '.join(parts)}\n")
            next_line_s = elapsed_s + LINE_EVERY_S

    with tqdm(total=1.0, desc=title, bar_format=layout, disable=not on_terminal) as bar:
        yield show


def time_left(share: float, elapsed_s: float) -> str:
    """The time left at the same speed, as text; empty while too little is done to estimate it."""
    return f"{elapsed_s * (1 - share) / share:.0f} s left" if share >= MIN_SHARE else ""
