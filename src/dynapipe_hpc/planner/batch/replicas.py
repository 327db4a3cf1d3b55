"""Spreads micro-batches over replicas."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Self

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.cost.cost_model import CostModel


class TooFewMicroBatchesError(InputError):
    """Fewer micro-batches than replicas that need one."""

    @classmethod
    def of(cls, n_microbatches: int, n_replicas: int) -> Self:
        """The error for an iteration that has too few."""
        return cls(
            f"an iteration has {n_microbatches} micro-batches for {n_replicas} replicas, each "
            "of which needs one; lower cluster.n_replicas, raise data.tokens_per_batch, or lower "
            "planner.batch.rows_per_microbatch where it is set"
        )


def balance_replicas(
    microbatches: Sequence[MicroBatch], cost: CostModel, n_replicas: int
) -> list[list[int]]:
    """Gives every replica about the same work, at least one micro-batch.

    Balances the sums of `bottleneck_ms` by the largest differencing method: of all partial
    assignments, the two with the greatest spread between replicas are put together, the most
    loaded replica of one with the least loaded of the other, until one is left.

    Args:
        microbatches: Of all replicas.
        cost: Predicts their times.
        n_replicas: Number of replicas, >= 1.

    Returns:
        Per replica, indices into `microbatches`, ascending. Replica 0 has micro-batch 0.

    Raises:
        TooFewMicroBatchesError: A replica would have nothing to do.

    Source:
        Karmarkar and Karp, "The differencing method of set partitioning", UCB/CSD 82/113, 1982.
    """
    if len(microbatches) < n_replicas:
        raise TooFewMicroBatchesError.of(len(microbatches), n_replicas)
    work_ms = bottleneck_ms(microbatch_costs(microbatches, cost))
    heap = [_Assignment.of_one(i, ms, n_replicas) for i, ms in enumerate(work_ms.tolist())]
    heapq.heapify(heap)
    while len(heap) > 1:
        widest = heapq.heappop(heap)
        heapq.heapreplace(heap, widest.joined(heap[0]))
    return sorted(sorted(replica.microbatches) for replica in heap[0].replicas)


class _Replica(NamedTuple):
    work_ms: float
    microbatches: tuple[int, ...]


class _Assignment(NamedTuple):
    """Some micro-batches spread over replicas, the most loaded first; ordered by spread."""

    negative_spread_ms: float
    replicas: tuple[_Replica, ...]

    @classmethod
    def of_one(cls, microbatch: int, work_ms: float, n_replicas: int) -> Self:
        idle = _Replica(0.0, ())
        return cls.of((_Replica(work_ms, (microbatch,)), *[idle] * (n_replicas - 1)))

    @classmethod
    def of(cls, replicas: Sequence[_Replica]) -> Self:
        by_load = tuple(sorted(replicas, reverse=True))
        return cls(by_load[-1].work_ms - by_load[0].work_ms, by_load)

    def joined(self, other: Self) -> Self:
        pairs = zip(self.replicas, reversed(other.replicas), strict=True)
        return self.of(
            [_Replica(a.work_ms + b.work_ms, a.microbatches + b.microbatches) for a, b in pairs]
        )
