"""One iteration on one rank: what it took, and what it measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.run.plan_ahead import PlanningFacts
from dynapipe_hpc.experiment.run.planner_activity import PlannerActivity
from dynapipe_hpc.plan.rank_plan import RankPlan


@dataclass(frozen=True, slots=True)
class TakenPlan:
    """Plan of an iteration, taken from the store.

    Attributes:
        data: The plan, encoded.
        plan: The plan.
        samples: Global batch of the iteration.
        waited_ms: Time that the rank waited for the plan.
        plans_ahead: Number of later plans that were ready.
    """

    data: bytes
    plan: RankPlan
    samples: Sequence[Sample]
    waited_ms: float
    plans_ahead: int


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Plan and trace of an iteration, as a rank sends them to be written.

    Attributes:
        data: The plan, encoded.
        trace: Measured times and memory, and what the planner did meanwhile.
    """

    data: bytes
    trace: IterationTrace


@dataclass(frozen=True, slots=True)
class ExecutedIteration:
    """One iteration on one rank.

    Attributes:
        taken: The plan that was executed, and its global batch.
        trace: Measured times and memory.
        start_s: Start of the execution, by `time.perf_counter`.
        is_first_shard: Whether the rank is the first tensor-parallel shard of its stage.
        planning: Facts of its planning, if this rank has planned it.
    """

    taken: TakenPlan
    trace: IterationTrace
    start_s: float
    is_first_shard: bool
    planning: PlanningFacts

    @property
    def plan(self) -> RankPlan:
        """The plan that was executed."""
        return self.taken.plan

    def rank_trace(self, activity: PlannerActivity) -> RankTrace:
        """Plan and trace of the iteration, with the activity of the rank's planner meanwhile."""
        planning = activity.between(self.start_s, self.start_s + 1e-3 * max(self.trace.end_ms))
        return RankTrace(self.taken.data, replace(self.trace, planning=planning))
