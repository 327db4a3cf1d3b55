"""Least times of micro-batches on their way through a pipeline, from which bounds are made."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts


@dataclass(frozen=True, slots=True, eq=False)
class PathTimes:
    """Least times of micro-batches on their way through the stages.

    What splitting a backward pass takes is left out: a plan may keep passes whole.

    Arrays have shape (n_microbatches, n_stages) unless stated otherwise.

    Attributes:
        forward_ms: Time of F.
        gradient_ms: Time of B, without what splitting takes.
        weight_ms: Time of W; 0 if backward passes are not split.
        transfer_ms: Time of a transfer between a stage and the next, in either direction.
        reduce_ms: Time from each stage's last pass until its gradients are reduced, shape
            (n_stages,).
    """

    forward_ms: FloatArray
    gradient_ms: FloatArray
    weight_ms: FloatArray
    transfer_ms: FloatArray
    reduce_ms: FloatArray

    @classmethod
    def from_costs(
        cls,
        costs: StageCosts,
        link: Link,
        *,
        may_split: bool,
        reduce_ms: FloatArray | None = None,
    ) -> Self:
        """The times of micro-batches; infinite if they cannot run."""
        transfer_ms = link.latency_ms + costs.boundary_bytes / link.bytes_per_ms
        weight_ms = costs.weight_ms if may_split else np.zeros_like(costs.weight_ms)
        gradient_ms = np.full_like(weight_ms, np.inf)
        known = np.isfinite(weight_ms)
        np.subtract(costs.backward_ms, weight_ms, out=gradient_ms, where=known)
        reduce_ms = np.zeros(costs.n_stages) if reduce_ms is None else reduce_ms
        return cls(costs.forward_ms, gradient_ms, weight_ms, transfer_ms, reduce_ms)

    @property
    def through_ms(self) -> FloatArray:
        """Work of a stage before its last B has ended: F and B."""
        return self.forward_ms + self.gradient_ms

    @property
    def work_ms(self) -> FloatArray:
        """All work of a stage: F, B and W."""
        return self.through_ms + self.weight_ms

    @property
    def head_ms(self) -> FloatArray:
        """Time until a micro-batch can have reached a stage."""
        return _before(self.forward_ms + self.transfer_ms)

    @property
    def tail_ms(self) -> FloatArray:
        """Time from the end of a micro-batch's B on a stage to the end of what follows.

        That is W, here or on an earlier stage, and then a reduction.
        """
        back_ms = _before(self.gradient_ms + self.transfer_ms)
        last_ms = self.weight_ms + self.reduce_ms
        return back_ms + np.maximum.accumulate(last_ms - back_ms, axis=1)

    @property
    def there_and_back_ms(self) -> FloatArray:
        """Round trip: time from a micro-batch's first pass to its last, and reductions.

        Shape (n_microbatches,).
        """
        return np.asarray((self.head_ms + self.through_ms + self.tail_ms)[:, -1])


def _before(stages: FloatArray) -> FloatArray:
    """Sums over the stages before each stage (exclusive cumulative sum)."""
    sums = np.cumsum(stages, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)
