"""Candidates for the plan of an iteration, and how their replicas are scheduled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_replica
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import iteration_ms


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
        """The attempts that gave a plan."""
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


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaScheduler:
    """Schedules each replica by the rule with which its gradients are reduced soonest.

    Equal replicas are scheduled once: most recur in the plans of a search.
    """

    cost: CostModel
    cluster: Cluster
    rules: Sequence[ScheduleRule]
    _known: dict[tuple[Hashable, tuple[float, ...]], Pipeline] = field(
        default_factory=dict, init=False
    )

    def schedule(self, way: str, replicas: Sequence[PricedReplica]) -> Candidate | Infeasible:
        """Schedules the replicas of a plan."""
        try:
            pipelines = [
                self._pipeline(*each)
                for each in zip(replicas, self._slowness(len(replicas)), strict=True)
            ]
        except InfeasibleScheduleError as error:
            return Infeasible(way, str(error))
        return Candidate(way, pipelines, self.cost)

    def _slowness(self, n_replicas: int) -> list[tuple[float, ...]]:
        """Slowness factors of the stages, by replica; empty if all replicas are equally fast."""
        slowness = self.cost.slowness
        return [()] * n_replicas if slowness is None else list(map(tuple, slowness.tolist()))

    def _pipeline(self, replica: PricedReplica, slowness: tuple[float, ...]) -> Pipeline:
        known = self._known.get((replica.key, slowness))
        if known is not None:
            return known
        costs = replica.costs.slowed(np.array(slowness)) if slowness else replica.costs
        priced = replica._replace(costs=costs)
        scheduled = schedule_replica(priced, self.cost, self.cluster, self.rules)
        self._known[replica.key, slowness] = scheduled
        return scheduled


class Chooser(Protocol):
    """Makes plans of an iteration to choose from, for one cost model and one cluster.

    Contract: every plan runs every sample once, within memory; the same samples give the same
    plans.
    """

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """Forms micro-batches and schedules them.

        Args:
            samples: A global batch, in order of arrival.

        Raises:
            DoesNotFitError, NotMeasuredError: A sample or micro-batch cannot run.
            InfeasibleScheduleError: No schedule keeps within memory. If all attempts fail, the
                returned choice may raise it instead, when asked for its best plan.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        ...
