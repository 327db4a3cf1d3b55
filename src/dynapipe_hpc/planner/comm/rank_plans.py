"""From scheduled pipelines to the plans of all ranks."""

from collections.abc import Sequence

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Instruction
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan
from dynapipe_hpc.planner.comm.place_transfers import place_transfers
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.schedule.pipeline import Pipeline


def rank_plans(
    iteration: int,
    pipelines: Sequence[Pipeline],
    cluster: Cluster,
    cost: CostModel,
    hidden_size: int,
) -> list[RankPlan]:
    """Writes one plan per rank, by rank.

    Args:
        iteration: Its number.
        pipelines: One per replica.
        cluster: Numbers the ranks and limits their memory.
        cost: What the pipelines were scheduled with.
        hidden_size: Width of the tensors between stages.
    """
    makespan_ms = max(pipeline.timeline.makespan_ms for pipeline in pipelines)
    iteration_ms = makespan_ms + cost.update_ms
    plans = []
    for replica, pipeline in enumerate(pipelines):
        for stage, instructions in enumerate(_instructions(replica, pipeline, cluster)):
            plans.append(
                RankPlan(
                    iteration=iteration,
                    rank=cluster.rank_of(replica, stage),
                    replica=replica,
                    stage=stage,
                    hidden_size=hidden_size,
                    microbatches=pipeline.microbatches,
                    instructions=instructions,
                    memory=_memory(pipeline, stage, cluster, cost.static_bytes),
                    prediction=Prediction(iteration_ms, _passes_ms(pipeline, stage)),
                )
            )
    return plans


def _instructions(
    replica: int, pipeline: Pipeline, cluster: Cluster
) -> list[tuple[Instruction, ...]]:
    peers = [cluster.rank_of(replica, stage) for stage in range(cluster.n_stages)]
    return place_transfers(pipeline.schedule, pipeline.timeline, peers)


def _memory(
    pipeline: Pipeline, stage: int, cluster: Cluster, static_bytes: FloatArray
) -> MemoryPlan:
    costs = pipeline.costs
    return MemoryPlan(
        limit=cluster.device_memory_bytes,
        static=int(static_bytes[stage]),
        stored=_whole_bytes(costs.stored_bytes[:, stage]),
        forward_transient=_whole_bytes(costs.forward_transient_bytes[:, stage]),
        backward_transient=_whole_bytes(costs.backward_transient_bytes[:, stage]),
    )


def _whole_bytes(sizes: FloatArray) -> tuple[int, ...]:
    # Down, so that what fits in fractions of bytes also fits in whole ones.
    return tuple(int(size) for size in sizes)


def _passes_ms(pipeline: Pipeline, stage: int) -> tuple[tuple[float, float], ...]:
    starts, ends = pipeline.timeline.start_ms[stage], pipeline.timeline.end_ms[stage]
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))
