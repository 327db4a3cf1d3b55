"""Balanced assignment of micro-batches to replicas."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray


class TooFewMicroBatchesError(InputError):
    """Fewer micro-batches than replicas that need one."""

    @classmethod
    def from_counts(cls, n_microbatches: int, n_replicas: int) -> Self:
        """The error for an iteration that has too few micro-batches."""
        return cls(
            f"an iteration has {n_microbatches} micro-batches for {n_replicas} replicas, each "
            "of which needs one; lower cluster.n_replicas or raise data.tokens_per_batch"
        )


def balance_replicas(
    microbatches: Sequence[MicroBatch], cost: CostModel, n_replicas: int
) -> list[list[int]]:
    """Assigns about the same work, and at least one micro-batch, to every replica.

    Balances the sums of `bottleneck_ms` by the largest differencing method: the two partial
    assignments with the greatest difference between replicas are combined, the most loaded replica
    of one with the least loaded of the other, until one assignment is left. See balance_work.hpp.

    `n_replicas`: Number of replicas, >= 1. Returns indices into `microbatches` per replica,
    ascending. Replica 0 has micro-batch 0. Raises `TooFewMicroBatchesError`: A replica would have
    nothing to do. Source: Karmarkar and Karp, "The differencing method of set partitioning",
    UCB/CSD 82/113, 1982.
    """
    return balance(bottleneck_ms(microbatch_costs(microbatches, cost)), n_replicas)


def balance(work_ms: FloatArray, n_replicas: int) -> list[list[int]]:
    """Indices of micro-batches of known work, per replica; see `balance_replicas`."""
    if len(work_ms) < n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(work_ms), n_replicas)
    if n_replicas == 1:
        return [list(range(len(work_ms)))]
    return _kernels.balance_work(np.ascontiguousarray(work_ms), n_replicas)
