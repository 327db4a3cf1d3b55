"""Activity of a rank's planner over time."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dynapipe_hpc.executor.trace import Span

_MAX_KEPT = 256


class PlannerActivity:
    """Recent activity of a planning thread, for other threads to read.

    The thread that plans writes; a write is one operation of the interpreter, so nothing is locked.
    """

    def __init__(self) -> None:
        """Begins with nothing done."""
        self._done: deque[tuple[str, float, float]] = deque(maxlen=_MAX_KEPT)
        self._current: tuple[str, float] | None = None

    @contextmanager
    def doing(self, label: str) -> Iterator[None]:
        """Records that the thread does something as long as the context lasts."""
        started_s = time.perf_counter()
        self._current = (label, started_s)
        try:
            yield
        finally:
            self._done.append((label, started_s, time.perf_counter()))
            self._current = None

    def between(self, start_s: float, end_s: float) -> tuple[Span, ...]:
        """Activity between two times of `time.perf_counter`, the first of which becomes 0.

        Args:
            start_s: Begin; what began earlier is cut there.
            end_s: End, likewise.
        """
        current = self._current
        known = list(self._done)
        if current is not None and current[1] not in {started_s for _, started_s, _ in known}:
            known.append((*current, end_s))
        return tuple(
            Span(label, 1e3 * (max(begun, start_s) - start_s), 1e3 * (min(over, end_s) - start_s))
            for label, begun, over in known
            if begun < end_s and over > start_s
        )
