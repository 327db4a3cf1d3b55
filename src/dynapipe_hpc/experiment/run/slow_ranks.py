"""Ranks that have become slow, as the log names them."""

import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import FloatArray

SLOW = 1.2
"""Ratio to the usual time from which a rank is named."""
RECOVERED = 1.1
"""Ratio up to which it is said that the rank is no longer slow."""
USUAL = 0.98
"""Share of the usual time that is left after another iteration: the last fifty count."""
MIN_SEEN = 10
"""Number of iterations after which it is known what is usual."""


class SlowRanks:
    """Ranks whose passes take longer than they used to, or than those of other replicas.

    What was usual before a rank became slow stays the usual until it is so again.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is usual yet."""
        self._cluster = cluster
        self._usual = np.ones((cluster.n_replicas, cluster.n_stages))
        self._is_slow = np.zeros(self._usual.shape, bool)
        self._n_seen = 0

    def add(self, now: FloatArray) -> list[str]:
        """Takes note of an iteration; returns a line for every rank that has changed.

        Args:
            now: Time of every rank as a multiple of what the cost table says, over the last few
                iterations, shape (n_replicas, n_stages).
        """
        self._n_seen += 1
        if self._n_seen <= MIN_SEEN:
            self._usual = now
            return []
        ratio = now / np.minimum(self._usual, now.min(axis=0))
        is_slow = ratio > np.where(self._is_slow, RECOVERED, SLOW)
        changed = np.argwhere(is_slow != self._is_slow).tolist()
        self._is_slow = is_slow
        self._usual = np.where(is_slow, self._usual, USUAL * self._usual + (1 - USUAL) * now)
        return [self._line(replica, stage, ratio[replica, stage]) for replica, stage in changed]

    def _line(self, replica: int, stage: int, ratio: float) -> str:
        rank = self._cluster.rank_of(replica, stage)
        note = (
            f"{ratio:.2f} times as long as usual"
            if self._is_slow[replica, stage]
            else "as long as usual again"
        )
        return f"rank {rank} (stage {stage} of replica {replica}) takes {note} for its passes"
