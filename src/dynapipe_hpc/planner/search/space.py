"""The search space: windows of ordered samples, and the limits on their schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import kernel_link

Windows = npt.NDArray[np.uint32]
Replicas = Sequence[Windows]
"""Windows of each replica in order: first sample, number of samples, mode; shape (n, 3)."""


class ConstructedPlan(NamedTuple):
    """A plan constructed by rules, with their parameters.

    Attributes:
        replicas: Windows of every replica.
        makespan_ms: End of the slowest replica, by the adaptive schedule; see `FoundPlan`.
        memory_price: Price of the memory that micro-batches keep, used to cut the samples.
        longest_ms: Most work of a micro-batch of several samples.
        max_kept_share: Most of a stage's memory that such a micro-batch keeps, as a fraction.
        balances_fill: Whether the first balance also counted the fill time of the longest
            micro-batch of a replica.
        n_rebalanced: Number of times that replicas were balanced again after a simulation.
    """

    replicas: Replicas
    makespan_ms: float
    memory_price: float
    longest_ms: float
    max_kept_share: float
    balances_fill: bool
    n_rebalanced: int

    @classmethod
    def from_kernel(cls, plan: _kernels.ConstructedPlan) -> Self:
        """The plan that a kernel has made."""
        return cls(**{name: getattr(plan, name) for name in cls._fields})

    def __str__(self) -> str:
        """The parameters of the rules in words."""
        longest = f", at most {self.longest_ms:.0f} ms each" if self.longest_ms < np.inf else ""
        share = self.max_kept_share
        kept = f", at most {100 * share:.3g} % of memory each" if share < np.inf else ""
        fill = " and fill" if self.balances_fill else ""
        again = f", balanced {self.n_rebalanced} times more" if self.n_rebalanced else ""
        return f"memory price {self.memory_price:g}{longest}{kept}, by work{fill}{again}"


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """All plans whose micro-batches are windows of the samples in one order.

    Attributes:
        windows: The windows, with their costs.
        room_bytes: Memory for activations, shape (n_stages,).
        link: Link between neighbouring stages.
        split_backward: Whether weight gradients have separate passes.
        slowness: Factors by which replicas that share the work take longer, shape (n_replicas,).
        reduce_ms: `extra_reduce_ms`, shape (n_stages,). Makespans include it, because an iteration
            ends when all stages have reduced, not when the last pass ends. Slow replicas stretch it
            like a pass, which is only an approximation.
    """

    windows: WindowTable
    room_bytes: FloatArray
    link: Link
    split_backward: bool
    slowness: FloatArray
    reduce_ms: FloatArray
    _known: list[_kernels.ReplicaSimulator] = field(default_factory=list, init=False)

    @property
    def _simulator(self) -> _kernels.ReplicaSimulator:
        """Simulator with the costs of all windows, made on first use, as large tables take time."""
        if not self._known:
            windows, link = self.windows.kernel_costs, kernel_link(self.link)
            self._known.append(
                _kernels.ReplicaSimulator(
                    windows, self.room_bytes, link, self.split_backward, self.reduce_ms
                )
            )
        return self._known[0]

    @property
    def n_replicas(self) -> int:
        """Number of replicas that share the work, at most that of samples."""
        return len(self.slowness)

    def construct(self, n_kept: int) -> list[ConstructedPlan]:
        """Plans constructed by rules, best first, at most `n_kept`; see construct_plans.hpp.

        What the space has simulated before takes no effort, so that more might be tried: they are
        asked for once.
        """
        made = _kernels.construct_plans(self._simulator, self.slowness, n_kept)
        return [ConstructedPlan.from_kernel(plan) for plan in made]

    def search(self, starts: Sequence[Replicas], seed: int) -> _kernels.PlanSearch:
        """A local search, which finds better plans with more effort; see improve_plan.hpp.

        `improve(effort)` returns the best start, then each better plan that a round within
        `effort` passes finds, best last. It continues from where it was.

        Args:
            starts: Plans to start from, at least one, without empty replicas.
            seed: Seed of the random moves.
        """
        return _kernels.PlanSearch(self._simulator, self.slowness, starts, seed)

    def may_beat(self, makespan_ms: float) -> bool:
        """Whether some plan might end sooner; False is proof, see least_makespan.hpp."""
        # Slower replicas make no plan faster.
        return makespan_ms == np.inf or makespan_ms > _kernels.least_makespan_ms(
            self._simulator, self.n_replicas
        )

    def makespans_ms(self, plans: Sequence[Replicas], give_up_ms: float) -> list[float]:
        """End of the slowest replica of each plan, by the adaptive schedule.

        Args:
            plans: The plans.
            give_up_ms: Time above which a makespan may be infinite.
        """
        return _kernels.makespans_ms(self._simulator, self.slowness, plans, give_up_ms)

    def microbatches(self, replicas: Replicas) -> list[list[MicroBatch]]:
        """Micro-batches of every replica, in order."""
        return [self.windows.microbatches_of(replica) for replica in replicas]

    def costs(self, replicas: Replicas) -> list[StageCosts]:
        """Costs of every replica's micro-batches."""
        return [self.windows.costs_of(replica) for replica in replicas]
