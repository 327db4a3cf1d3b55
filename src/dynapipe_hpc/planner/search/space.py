"""What plans are searched in: the windows of ordered samples, and what limits their schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.batch.candidates import Candidates
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts

Windows = npt.NDArray[np.uint32]
Replicas = Sequence[Windows]
"""Per replica, first sample, number of samples and mode of its windows, in order, (n, 3)."""


class ConstructedPlan(NamedTuple):
    """A plan that was built from rules, and by which.

    Attributes:
        replicas: Its windows.
        makespan_ms: Of the slowest replica, by the adaptive schedule.
        memory_price: On what micro-batches keep, at which samples were cut.
        longest_ms: Most work of a micro-batch of several samples.
        balances_fill: Whether replicas were at first charged with the fill of their longest.
        n_rebalanced: How often replicas were balanced anew after a simulation.
    """

    replicas: Replicas
    makespan_ms: float
    memory_price: float
    longest_ms: float
    balances_fill: bool
    n_rebalanced: int

    def __str__(self) -> str:
        """The rules."""
        longest = f", at most {self.longest_ms:.0f} ms each" if self.longest_ms < np.inf else ""
        fill = " and fill" if self.balances_fill else ""
        again = f", balanced {self.n_rebalanced} times more" if self.n_rebalanced else ""
        return f"memory price {self.memory_price:g}{longest}, by work{fill}{again}"


class ImprovedPlan(NamedTuple):
    """What a round of local search found.

    Attributes:
        replicas: Windows of every replica.
        makespan_ms: End of the slowest replica, by the adaptive schedule.
        effort: Passes scheduled in all rounds so far; 0 if this is what the search began with.
        n_moves: Changes that were tried in all rounds so far.
    """

    replicas: Replicas
    makespan_ms: float
    effort: int
    n_moves: int


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """All plans whose micro-batches are windows of the samples in one order.

    Attributes:
        windows: Their costs.
        room_bytes: Shape (n_stages,), what activations may occupy.
        link: Between neighbouring stages.
        split_backward: Whether gradients of weights are passes of their own.
    """

    windows: Candidates
    room_bytes: FloatArray
    link: Link
    split_backward: bool
    _known: dict[tuple[int, int, int], MicroBatch] = field(default_factory=dict, init=False)

    def construct(self, n_replicas: int, n_kept: int, n_refined: int) -> list[ConstructedPlan]:
        """The best plans that rules make, best first; see construct_plans.hpp.

        Args:
            n_replicas: At most as many as samples.
            n_kept: How many to return at most.
            n_refined: How many of these to refine.
        """
        made = _kernels.construct_plans(*self._description, n_replicas, n_kept, n_refined)
        return [ConstructedPlan(*plan) for plan in made]

    def improve(self, starts: Sequence[Replicas], effort: int, seed: int) -> list[ImprovedPlan]:
        """The best start, then what rounds of local search find that is better, the best last.

        What less effort finds, more finds too; see improve_plan.hpp.

        Args:
            starts: Plans, at least one; no replica is empty.
            effort: Passes to schedule.
            seed: Of the random changes.
        """
        found = _kernels.improve_plan(*self._description, starts, effort, seed)
        return [ImprovedPlan(*plan) for plan in found]

    def may_beat(self, makespan_ms: float, n_replicas: int) -> bool:
        """False only if no plan for replicas ends sooner, see least_makespan.hpp."""
        return makespan_ms == np.inf or makespan_ms > _kernels.least_makespan_ms(
            *self._description, n_replicas
        )

    def makespans_ms(self, plans: Sequence[Replicas]) -> list[float]:
        """End of the slowest replica of each plan, by the adaptive schedule."""
        return _kernels.makespans_ms(*self._description, plans)

    def microbatches(self, replicas: Replicas) -> list[list[MicroBatch]]:
        """Per replica, its micro-batches in order."""
        return [[self._microbatch(*window) for window in replica.tolist()] for replica in replicas]

    def costs(self, replicas: Replicas) -> list[StageCosts]:
        """Per replica, what its micro-batches cost."""
        cells = (self.windows.cells_of(replica).astype(np.int64) for replica in replicas)
        return [self.windows.costs.take(of_replica) for of_replica in cells]

    def _microbatch(self, first: int, size: int, mode: int) -> MicroBatch:
        """Made once, as plans of one search have most of theirs in common."""
        window = (first, size, mode)
        if window not in self._known:
            self._known[window] = self.windows.microbatch(*window)
        return self._known[window]

    @property
    def _description(
        self,
    ) -> tuple[
        FloatArray,
        npt.NDArray[np.int32],
        IntArray,
        npt.NDArray[np.int32],
        FloatArray,
        float,
        float,
        bool,
        bool,
    ]:
        return (
            self.windows.costs.table,
            self.windows.cells,
            self.windows.spans,
            self.windows.row_of_sample,
            self.room_bytes,
            self.link.latency_ms,
            self.link.bytes_per_ms,
            self.link.full_duplex,
            self.split_backward,
        )
