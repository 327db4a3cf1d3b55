"""Balanced assignment of micro-batches to replicas."""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray


class TooFewMicroBatchesError(InputError):
    """Fewer micro-batches than replicas that need one."""

    @classmethod
    def of(cls, n_microbatches: int, n_replicas: int) -> Self:
        """The error for an iteration that has too few."""
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
    of one with the least loaded of the other, until one assignment is left.

    Args:
        microbatches: Micro-batches of all replicas.
        cost: Cost model of the micro-batches.
        n_replicas: Number of replicas, >= 1.

    Returns:
        Indices into `microbatches` per replica, ascending. Replica 0 has micro-batch 0.

    Raises:
        TooFewMicroBatchesError: A replica would have nothing to do.

    Source:
        Karmarkar and Karp, "The differencing method of set partitioning", UCB/CSD 82/113, 1982.
    """
    return balance(bottleneck_ms(microbatch_costs(microbatches, cost)), n_replicas)


def balance(work_ms: FloatArray, n_replicas: int) -> list[list[int]]:
    """Indices of micro-batches of known work, per replica; see `balance_replicas`."""
    if len(work_ms) < n_replicas:
        raise TooFewMicroBatchesError.of(len(work_ms), n_replicas)
    if n_replicas == 1:
        return [list(range(len(work_ms)))]
    heap = [
        _Assignment.of([_Replica(ms, (i,))], n_replicas) for i, ms in enumerate(work_ms.tolist())
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        widest = heapq.heappop(heap)
        heapq.heapreplace(heap, widest.joined(heap[0], n_replicas))
    return sorted(sorted(replica.microbatches) for replica in heap[0].replicas)


class _Replica(NamedTuple):
    work_ms: float
    microbatches: tuple[int, ...]


class _Assignment(NamedTuple):
    """Some micro-batches spread over replicas, the most loaded first; ordered by spread.

    Replicas that have nothing are left out, so that many replicas of few micro-batches are few.
    """

    negative_spread_ms: float
    replicas: tuple[_Replica, ...]

    @classmethod
    def of(cls, replicas: Iterable[_Replica], n_replicas: int) -> Self:
        by_load = tuple(sorted(replicas, reverse=True))
        least_ms = by_load[-1].work_ms if len(by_load) == n_replicas else 0.0
        return cls(least_ms - by_load[0].work_ms, by_load)

    def joined(self, other: Self, n_replicas: int) -> Self:
        """Both, its most loaded replica with the least loaded one of the other, and so on."""
        n_shared = max(0, len(self.replicas) + len(other.replicas) - n_replicas)
        mine, theirs = len(self.replicas) - n_shared, len(other.replicas) - n_shared
        shared = zip(self.replicas[mine:], reversed(other.replicas[theirs:]), strict=True)
        both = [_Replica(a.work_ms + b.work_ms, a.microbatches + b.microbatches) for a, b in shared]
        return self.of([*self.replicas[:mine], *other.replicas[:theirs], *both], n_replicas)
