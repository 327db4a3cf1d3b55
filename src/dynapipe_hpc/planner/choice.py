"""The plans of an iteration that were compared, and the one that won."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError
from dynapipe_hpc.planner.schedule.update import iteration_ms
from dynapipe_hpc.planner.search.space import ConstructedPlan


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to plan an iteration.

    Attributes:
        way: How its micro-batches came about, for people.
        pipelines: One per replica, or why there are none.
        cost: By which they were scheduled.
    """

    way: str
    pipelines: Sequence[Pipeline] | InfeasibleScheduleError
    cost: CostModel

    @property
    def iteration_ms(self) -> float:
        """When all weights are updated; infinite if the plan cannot run."""
        if isinstance(self.pipelines, InfeasibleScheduleError):
            return float("inf")
        return iteration_ms([pipeline.timeline for pipeline in self.pipelines], self.cost)

    @property
    def makespan_ms(self) -> float:
        """When the slowest replica ends; infinite if the plan cannot run."""
        if isinstance(self.pipelines, InfeasibleScheduleError):
            return float("inf")
        return max(pipeline.timeline.makespan_ms for pipeline in self.pipelines)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What an iteration's plan was chosen from.

    Attributes:
        candidates: In the order in which they were tried, at least one.
        constructed: By order of the samples, the plans that a search began with, best first.
    """

    candidates: tuple[Candidate, ...]
    constructed: Mapping[str, Sequence[ConstructedPlan]] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        """The one whose iteration ends first in the simulation; the first of equals."""
        return min(self.candidates, key=lambda candidate: candidate.iteration_ms)

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """Of the best candidate, one per replica.

        Raises:
            InfeasibleScheduleError: No candidate keeps within memory.
        """
        found = self.best.pipelines
        if isinstance(found, InfeasibleScheduleError):
            raise found
        return found
