"""The pace of a run: tokens so far, and an estimate of the time that is left."""

import time
from collections import deque
from datetime import UTC, datetime

from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.metrics import Metrics

N_RECENT = 20


class Pace:
    """The state of a run from iteration to iteration.

    The time that is left is estimated from the last iterations, with all that happens between
    them, as evaluations and checkpoints.
    """

    def __init__(self, n_iterations: int, tokens: int) -> None:
        """Begins after earlier starts of the run.

        Args:
            n_iterations: Number of iterations of the whole run.
            tokens: Real tokens of the iterations that earlier starts have done.
        """
        self._n_iterations, self._tokens = n_iterations, tokens
        self._ends_s = deque[float](maxlen=N_RECENT + 1)

    def metrics(self, record: IterationRecord, bubble_share: float) -> Metrics:
        """Metrics of an iteration that has just ended."""
        self._tokens += record.real_tokens
        if not self._ends_s:
            self._ends_s.append(time.monotonic() - 1e-3 * record.measured_ms)
        self._ends_s.append(time.monotonic())
        each_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        return Metrics(
            record=record,
            time=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
            n_iterations=self._n_iterations,
            tokens=self._tokens,
            bubble_share=bubble_share,
            seconds_left=each_s * (self._n_iterations - record.iteration - 1),
        )
