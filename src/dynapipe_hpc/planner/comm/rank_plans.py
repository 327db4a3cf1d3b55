"""Plans of all ranks, from scheduled pipelines."""

from collections.abc import Iterator, Sequence

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.plan.pass_spans import PassSpans
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.update import iteration_ms


def rank_plans(
    iteration: int,
    pipelines: Sequence[Pipeline],
    cluster: Cluster,
    cost: CostModel,
    *,
    hidden_size: int,
    boundaries: Sequence[Boundary],
) -> list[RankPlan]:
    """Writes one plan per stage of every replica, by rank; all shards of a stage execute it.

    Args:
        iteration: Number of the iteration.
        pipelines: Pipelines, one per replica.
        cluster: The cluster, with numbering of ranks and memory limit.
        cost: Cost model that the pipelines were scheduled with.
        hidden_size: Width of the tensors between stages.
        boundaries: Boundary after each stage, see `Placement.boundaries`.
    """
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
    """Memory of each stage; bytes are rounded down, so that what fits before also fits after."""
    columns = (costs.stored_bytes, costs.forward_transient_bytes, costs.backward_transient_bytes)
    sizes = np.stack(columns).astype(np.int64)  # (3, n_microbatches, n_stages)
    for static, stage_sizes in zip(static_bytes, sizes.transpose(2, 0, 1).tolist(), strict=True):
        yield MemoryPlan(cluster.device_memory_bytes, int(static), *map(tuple, stage_sizes))


def _passes_ms(timeline: Timeline) -> Iterator[PassSpans]:
    """Start and end of the passes of each stage."""
    return map(PassSpans, np.stack((timeline.start_ms, timeline.end_ms), axis=2))


def place_transfers(
    schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> list[InstructionRows]:
    """Writes the instructions of every stage of one replica.

    Every transfer starts on both sides when the pass that produces it ends in the simulation;
    so both sides start their transfers in the same order, and the plan cannot deadlock. Waits
    come as late as possible, and a receive takes the lowest free slot. For details see
    cpp/include/dynapipe/plan/place_transfers.hpp.

    Returns:
        Instructions of each stage, which end with ReduceGradients and StepOptimizer, unless the
        schedule has forward passes only.

    Source:
        Paper, section "Communication Planning".
    """
    rows = _kernels.place_transfers(schedule.codes, timeline.end_ms, np.array(peers, np.uint32))
    return list(map(InstructionRows, rows))
