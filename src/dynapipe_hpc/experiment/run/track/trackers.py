"""The trackers of a run, served by a thread of their own."""

import math
import threading
from collections.abc import Mapping, Sequence
from queue import Full, Queue

from dynapipe_hpc.experiment.run.track.tracker import Tracker
from dynapipe_hpc.job.print_error import warn

MAX_WAITING = 1000
MAX_END_S = 60.0
_Entry = tuple[int, Mapping[str, float]]


class Trackers:
    """Sends numbers to trackers, without which training does as well.

    Training never waits for a tracker and never ends because of one: what a slow one has no room
    for is left out, and one that fails gets nothing more. Both are said once.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        """Starts to serve trackers that are open."""
        self._trackers = list(trackers)
        self._waiting = Queue[_Entry | None](MAX_WAITING)
        self._is_full = False
        self._thread = threading.Thread(target=self._serve, name="trackers", daemon=True)
        if self._trackers:
            self._thread.start()

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Sends numbers by name, those that are finite.

        Args:
            step: Number of iterations that are done.
            numbers: The numbers.
        """
        if not self._trackers:
            return
        finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
        try:
            self._waiting.put_nowait((step, finite))
        except Full:
            if not self._is_full:
                warn(f"trackers lag {MAX_WAITING:,} iterations behind; they miss some")
            self._is_full = True

    def close(self) -> None:
        """Waits until all is sent, for a limited time."""
        if not self._thread.is_alive():
            return
        try:
            self._waiting.put(None, timeout=MAX_END_S)
            self._thread.join(MAX_END_S)
        except Full:
            pass
        if self._thread.is_alive():
            warn(f"trackers have not got all numbers after {MAX_END_S:g} s; the rest is lost")

    def _serve(self) -> None:
        while (entry := self._waiting.get()) is not None:
            for tracker in tuple(self._trackers):
                self._try(tracker, entry)
        for tracker in tuple(self._trackers):
            self._try(tracker, None)

    def _try(self, tracker: Tracker, entry: _Entry | None) -> None:
        try:
            if entry is None:
                tracker.close()
            else:
                tracker.add(*entry)
        except Exception as error:  # of a package of others, about a network or a disk
            warn(f"{tracker.name}: {error}; it gets nothing more of this run")
            self._trackers.remove(tracker)
