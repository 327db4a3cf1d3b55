"""Packed rows filled with the longest samples first: a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.deal import deal
from dynapipe_hpc.planner.baselines.first_fit import first_fit_decreasing
from dynapipe_hpc.planner.batch.packed_rows import packed_replicas, packed_tokens
from dynapipe_hpc.planner.cost.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class PackedFirstFit:
    """First-fit decreasing: each sample, longest first, goes into the first row with room for it.

    Replicas take rows in turns. Single samples are split off the rows with the most samples until
    every replica has as many.

    Attributes:
        tokens_per_microbatch: Limit on the tokens of a row; a longer sample has one of its own.

    Source:
        `first_fit_decreasing` of NeMo-RL (`data/packing/algorithms.py`), whose bins are a multiple
        of the data-parallel ranks in this way; TRL packs by the same rule (`packing_strategy`).
    """

    tokens_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"packed first fit, {self.tokens_per_microbatch} tokens"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas, see `ReplicaRule`."""
        capacity = self.tokens_per_microbatch
        needed = np.minimum(packed_tokens(samples, cost), capacity)
        rows = first_fit_decreasing(needed[:, np.newaxis], np.array([capacity]))
        donors = sorted(range(len(rows)), key=lambda i: len(rows[i]), reverse=True)
        replicas = deal(rows, cluster.n_replicas, donors)
        return packed_replicas(samples, replicas, cost, cluster)
