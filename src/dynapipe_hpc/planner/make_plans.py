"""Plans of all ranks, from the samples of an iteration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import InstructionRows
from dynapipe_hpc.plan.rank_plan import MemoryPlan, PassSpans, Prediction, RankPlan
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.choice import Choice, Chooser
from dynapipe_hpc.planner.config import BatchConfig, PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts, forward_costs
from dynapipe_hpc.planner.cost.from_config import CostSource, costs_of
from dynapipe_hpc.planner.cost.pass_times import Corrections, corrected_cost
from dynapipe_hpc.planner.from_config import check_halves, chooser, evaluation_chooser
from dynapipe_hpc.planner.schedule.lower_bound import (
    LongestTrip,
    LowerBound,
    longest_trip,
    lower_bound,
)
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.rules import may_split, schedule_rules
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.simulate import Timeline, iteration_ms


@dataclass(frozen=True, slots=True)
class Planner:
    """Planner of iterations: what stays the same from one iteration to the next.

    Attributes:
        chooser: Chooser, which makes plans of an iteration and compares them.
        cost: Cost model, which predicts time and memory of a micro-batch.
        cluster: Cluster that plans are for.
        hidden_size: Width of the tensors between stages.
        boundaries: Boundary after each stage, see `Placement.boundaries`.
        split_backward: Whether plans may split backward passes.
    """

    chooser: Chooser
    cost: CostModel
    cluster: Cluster
    hidden_size: int
    boundaries: Sequence[Boundary]
    split_backward: bool = False

    @classmethod
    def from_config(
        cls,
        config: PlannerConfig,
        costs: CostSource,
        shape: ModelShape,
        placement: Placement,
        *,
        cluster: Cluster,
        max_tokens: int,
    ) -> Self:
        """The planner that a configuration asks for.

        Args:
            config: Settings of rules and search.
            costs: Estimates or measurements, from `read_costs`.
            shape: The model.
            placement: The layers of every stage.
            cluster: Cluster that plans are for.
            max_tokens: Longest row, data.max_tokens.

        Raises:
            InputError: The costs are those of another model or lack what plans need, or packed rows
                are too long.
        """
        check_halves(costs, config, shape, cluster.n_shards)
        cost, link = costs_of(costs, shape, placement, cluster)
        cluster = cluster.model_copy(update={"link": link})
        return cls(
            chooser(config, cost, cluster, max_tokens),
            cost,
            cluster,
            shape.hidden_size,
            placement.boundaries(shape),
            may_split(schedule_rules(config.schedule)),
        )

    def of_evaluation(self, batch: BatchConfig) -> Self:
        """The planner of forward passes alone, by the same costs for the same cluster.

        Args:
            batch: The [planner.batch] table; it is ignored unless its rule is dynamic.
        """
        cost = forward_costs(self.cost)
        given = batch if isinstance(batch, DynamicConfig) else DynamicConfig()
        chooser = evaluation_chooser(given, cost, self.cluster)
        return replace(self, chooser=chooser, cost=cost, split_backward=False)

    def corrected(self, config: PlannerConfig, corrections: Corrections, max_tokens: int) -> Self:
        """The same planner with the times of passes corrected."""
        cost = corrected_cost(self.cost, corrections)
        return replace(self, cost=cost).choosing_by(config, max_tokens)

    def choosing_by(self, config: PlannerConfig, max_tokens: int) -> Self:
        """The same planner with other settings of rules and search."""
        return replace(self, chooser=chooser(config, self.cost, self.cluster, max_tokens))

    def make_plans(self, iteration: int, samples: Sequence[Sample]) -> list[RankPlan]:
        """Plans one iteration: the best choice, written for every rank.

        Args:
            iteration: Number of the iteration.
            samples: Global batch, in order of arrival.

        Returns:
            The plans of all ranks by rank, checked.

        Raises:
            InputError: See `Chooser.choose`.
        """
        return self.write(iteration, self.choose(samples))

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans to choose from, see `Chooser.choose`."""
        return self.chooser.choose(samples)

    def write(self, iteration: int, choice: Choice) -> list[RankPlan]:
        """The checked plans of all ranks by rank, for a choice.

        Raises:
            InfeasibleScheduleError: No candidate keeps within memory.
        """
        plans = rank_plans(
            iteration,
            choice.pipelines,
            self.cluster,
            self.cost,
            hidden_size=self.hidden_size,
            boundaries=self.boundaries,
        )
        check_plans(plans)
        return plans

    def lower_bound(self, choice: Choice, samples: Sequence[Sample]) -> LowerBound:
        """Lower bound of the time of plans like the chosen one, see `lower_bound.lower_bound`.

        Args:
            choice: A choice of this planner for the samples.
            samples: Global batch, in any order.
        """
        cost, splits = self.cost.monotone, self.split_backward
        return lower_bound(choice.pipelines, samples, cost, self.cluster, may_split=splits)

    def longest_trip(self, choice: Choice, samples: Sequence[Sample]) -> LongestTrip:
        """The longest sample of the choice and its round trip, see `LongestTrip`."""
        cost, splits = self.cost.monotone, self.split_backward
        return longest_trip(choice.pipelines, samples, cost, self.cluster, may_split=splits)


def rank_plans(
    iteration: int,
    pipelines: Sequence[Pipeline],
    cluster: Cluster,
    cost: CostModel,
    *,
    hidden_size: int,
    boundaries: Sequence[Boundary],
) -> list[RankPlan]:
    """Writes one plan per stage of every replica, by rank; all shards of a stage execute it."""
    entering = (Boundary.ROWS, *boundaries[:-1])
    predicted_ms = iteration_ms([pipeline.timeline for pipeline in pipelines], cost)
    return [
        RankPlan(
            iteration=iteration,
            rank=cluster.plan_of(cluster.rank_of(replica, stage)),
            replica=replica,
            stage=stage,
            hidden_size=hidden_size,
            microbatches=pipeline.microbatches,
            instructions=instructions,
            memory=memory,
            prediction=Prediction(predicted_ms, passes_ms),
            boundaries=(entering[stage], boundaries[stage]),
            n_stream_shards=cluster.n_stream_shards,
        )
        for replica, pipeline in enumerate(pipelines)
        for stage, (instructions, memory, passes_ms) in enumerate(
            zip(
                _instructions(replica, pipeline, cluster),
                _memory(pipeline.costs, cluster, cost.static_bytes),
                _passes_ms(pipeline.timeline),
                strict=True,
            )
        )
    ]


def _instructions(replica: int, pipeline: Pipeline, cluster: Cluster) -> list[InstructionRows]:
    ranks = (cluster.rank_of(replica, stage) for stage in range(cluster.n_stages))
    peers = [cluster.plan_of(rank) for rank in ranks]
    return place_transfers(pipeline.schedule, pipeline.timeline, peers)


def _memory(costs: StageCosts, cluster: Cluster, static_bytes: FloatArray) -> Iterator[MemoryPlan]:
    """Memory of each stage; bytes are rounded down, so that what fitted unrounded still fits."""
    columns = (costs.stored_bytes, costs.forward_transient_bytes, costs.backward_transient_bytes)
    sizes = np.stack(columns).astype(np.int64)  # (3, n_microbatches, n_stages)
    for static, stage_sizes in zip(static_bytes, sizes.transpose(2, 0, 1).tolist(), strict=True):
        yield MemoryPlan(cluster.device_memory_bytes, int(static), *map(tuple, stage_sizes))


def _passes_ms(timeline: Timeline) -> Iterator[PassSpans]:
    return map(PassSpans, np.stack((timeline.start_ms, timeline.end_ms), axis=2))


def place_transfers(
    schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> list[InstructionRows]:
    """Writes the instructions of every stage of one replica.

    Every transfer starts on both sides when the pass that produces it ends in the simulation;
    so both sides start their transfers in the same order, and the plan cannot deadlock. Waits
    come as late as possible, and a receive takes the lowest free slot. For details see
    cpp/include/dynapipe/plan/place_transfers.hpp.

    Returns instructions of each stage, which end with ReduceGradients and StepOptimizer, unless the
    schedule has forward passes only. Source: Paper, section "Communication Planning".
    """
    rows = _kernels.place_transfers(schedule.codes, timeline.end_ms, np.array(peers, np.uint32))
    return list(map(InstructionRows, rows))
