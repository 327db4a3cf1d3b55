"""The check that a run asked to stop has time for a last checkpoint."""

from collections import deque
from statistics import median

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.job.print_error import warn
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig

_N_COUNTED = 9


class CheckpointTime:
    """Compares the time a checkpoint takes with the time available for it."""

    def __init__(self, config: CheckpointConfig) -> None:
        """Takes the checkpoint interval, and the time from a request to stop to the kill."""
        self._config = config
        self._iterations_s: deque[float] = deque(maxlen=_N_COUNTED)
        self._checkpoint_s = 0.0
        self._has_warned = False

    def check(self, last_iteration_s: float, checkpoint_s: float) -> None:
        """Checks the times; to be called after every iteration.

        It acts only just after a checkpoint has been completed, when little would be lost. The
        median of iteration times counts, so that a single long iteration has no effect.

        Args:
            last_iteration_s: Duration of the last iteration.
            checkpoint_s: Duration of the last checkpoint; 0 if there was none.

        Raises:
            RunError: A run that is asked to stop would be killed before it has stopped.
        """
        self._iterations_s.append(last_iteration_s)
        if checkpoint_s == self._checkpoint_s:
            return
        self._checkpoint_s = checkpoint_s
        iteration_s = median(self._iterations_s)
        grace_s = self._config.grace_s
        if 0 < grace_s < iteration_s + checkpoint_s:
            raise RunError(
                f"checkpoint.grace_s is {grace_s:g}, but an iteration takes {iteration_s:.1f} s "
                f"and a checkpoint {checkpoint_s:.1f} s: a run that is asked to stop would be "
                "killed before it has stopped; send the signal earlier (--signal=USR1@SECONDS) and "
                "raise checkpoint.grace_s"
            )
        interval_s = self._config.every * iteration_s
        if 0 < interval_s < checkpoint_s and not self._has_warned:
            self._has_warned = True
            warn(
                f"a checkpoint takes {checkpoint_s:.1f} s, but checkpoint.every = "
                f"{self._config.every} iterations take only {interval_s:.1f} s, so training waits; "
                "raise checkpoint.every"
            )
