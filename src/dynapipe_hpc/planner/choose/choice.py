"""The plans of an iteration that were compared, and the one that won."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError
from dynapipe_hpc.planner.schedule.update import iteration_ms


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan of an iteration."""

    way: str
    pipelines: Sequence[Pipeline]
    cost: CostModel

    @property
    def iteration_ms(self) -> float:
        """Time at which all weights are updated."""
        return iteration_ms([pipeline.timeline for pipeline in self.pipelines], self.cost)

    @property
    def makespan_ms(self) -> float:
        """End of the slowest replica."""
        return max(pipeline.timeline.makespan_ms for pipeline in self.pipelines)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Micro-batches that no schedule rule keeps within memory."""

    way: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Candidates for an iteration's plan, and the best of them.

    `tried`: Plans, and attempts that gave none, in the order in which they were made; at least one.
    """

    tried: tuple[Candidate | Infeasible, ...]

    @property
    def candidates(self) -> list[Candidate]:
        """The plans."""
        return [each for each in self.tried if isinstance(each, Candidate)]

    @property
    def best(self) -> Candidate:
        """The plan whose iteration ends first in the simulation; the first of equal plans.

        Raises `InfeasibleScheduleError`: There is no plan; it gives the first attempt's reason.
        """
        if not self.candidates:
            reason, *_ = (each.reason for each in self.tried if isinstance(each, Infeasible))
            raise InfeasibleScheduleError(reason)
        return min(self.candidates, key=lambda candidate: candidate.iteration_ms)

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """The pipelines of the best plan, one per replica; raises `InfeasibleScheduleError`."""
        return self.best.pipelines
