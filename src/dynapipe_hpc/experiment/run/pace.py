"""Pace of a run: tokens so far, and an estimate of the time that is left."""

import time
from collections import deque
from dataclasses import fields
from datetime import UTC, datetime

from dynapipe_hpc.report.iteration_record import IterationNumbers, IterationRecord

N_RECENT = 20
_NUMBERS = [field.name for field in fields(IterationNumbers)]


class Pace:
    """State of a run from iteration to iteration.

    The time that is left is estimated from the last iterations, with all that happens between
    them, as evaluations and checkpoints.
    """

    def __init__(self, n_iterations: int, tokens: int) -> None:
        """Begins with the tokens of earlier starts of the run.

        Args:
            n_iterations: Number of iterations of the whole run.
            tokens: Real tokens of the iterations that earlier starts have done.
        """
        self._n_iterations, self._tokens = n_iterations, tokens
        self._ends_s = deque[float](maxlen=N_RECENT + 1)

    def record(self, numbers: IterationNumbers, measured_ms: float) -> IterationRecord:
        """Record of an iteration that has just ended.

        Args:
            numbers: Numbers of all ranks.
            measured_ms: Measured time of the iteration, update included.
        """
        self._tokens += numbers.real_tokens
        if not self._ends_s:
            self._ends_s.append(time.monotonic() - 1e-3 * measured_ms)
        self._ends_s.append(time.monotonic())
        each_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        return IterationRecord(
            **{name: getattr(numbers, name) for name in _NUMBERS},
            measured_ms=measured_ms,
            time=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
            n_iterations=self._n_iterations,
            tokens=self._tokens,
            seconds_left=each_s * (self._n_iterations - numbers.iteration - 1),
        )
