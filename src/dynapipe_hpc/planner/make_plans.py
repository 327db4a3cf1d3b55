"""The method, from the samples of an iteration to the plans of all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.batch.rules import batch_rules
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.schedule.config import RULES
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.improve import improve


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans iterations; what stays the same from one to the next.

    Attributes:
        cost: Predicts time and memory of a micro-batch.
        cluster: What the plans are for.
        hidden_size: Width of the tensors between stages.
        batch_rules: Ways to form micro-batches, all of which are tried.
        schedule_rules: Ways to order passes, all of which are tried.
        search: How the best plan of these is improved; None leaves it as it is, and baselines
            their own micro-batches.
    """

    cost: CostModel
    cluster: Cluster
    hidden_size: int
    batch_rules: Sequence[BatchRule]
    schedule_rules: Sequence[ScheduleRule]
    search: SearchConfig | None = None

    @classmethod
    def of(
        cls, config: PlannerConfig, shape: ModelShape, cluster: Cluster, max_tokens: int
    ) -> Self:
        """The planner that a configuration asks for; `max_tokens` is data.max_tokens."""
        cost, link = costs_of(config.cost, shape, cluster)
        return cls(
            cost,
            cluster.model_copy(update={"link": link}),
            shape.hidden_size,
            batch_rules(config.batch, cluster.n_stages, max_tokens),
            [RULES[name] for name in config.schedule.rules],
            config.search if isinstance(config.batch, DynamicConfig) else None,
        )

    def make_plans(self, iteration: int, samples: Sequence[Sample]) -> list[RankPlan]:
        """Plans one iteration.

        Of all candidates, the one whose slowest replica ends first in the simulation is taken.

        Args:
            iteration: Its number.
            samples: Its global batch, in order of arrival.

        Returns:
            The plans of all ranks by rank, checked.

        Raises:
            DoesNotFitError, NotMeasuredError: A sample or micro-batch cannot run.
            InfeasibleScheduleError: No candidate keeps within memory.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        pipelines = self._improved(min(self._candidates(samples), key=_slowest_ms), samples)
        plans = rank_plans(iteration, pipelines, self.cluster, self.cost, self.hidden_size)
        check_plans(plans)
        return plans

    def _candidates(self, samples: Sequence[Sample]) -> list[list[Pipeline]]:
        """The pipelines of all replicas, for every way to form micro-batches that works out."""
        candidates, errors = [], []
        ways = (tuple(rule(samples, self.cost, self.cluster)) for rule in self.batch_rules)
        for microbatches in dict.fromkeys(ways):  # rules often agree
            replicas = balance_replicas(microbatches, self.cost, self.cluster.n_replicas)
            try:
                candidates.append(
                    self._pipelines([[microbatches[i] for i in replica] for replica in replicas])
                )
            except InfeasibleScheduleError as error:
                errors.append(error)
        if not candidates:
            raise errors[-1]
        return candidates

    def _improved(self, pipelines: list[Pipeline], samples: Sequence[Sample]) -> list[Pipeline]:
        if self.search is None or self.search.moves == 0:
            return pipelines
        replicas = [pipeline.microbatches for pipeline in pipelines]
        changed = improve(replicas, samples, self.cost, self.cluster, self.search)
        return min(pipelines, self._pipelines(changed), key=_slowest_ms)

    def _pipelines(self, replicas: Sequence[Sequence[MicroBatch]]) -> list[Pipeline]:
        return [
            schedule_pipeline(microbatches, self.cost, self.cluster, self.schedule_rules)
            for microbatches in replicas
        ]


def _slowest_ms(pipelines: Sequence[Pipeline]) -> float:
    return max(pipeline.timeline.makespan_ms for pipeline in pipelines)
