"""Lower bound on the time of an iteration."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.packed_bound import packed_bound_ms, packed_trip_ms
from dynapipe_hpc.planner.schedule.padded_bound import padded_bound_ms, padded_trip_ms
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.sliced_bound import sliced_bound_ms


class LowerBound(NamedTuple):
    """Times that no plan of a kind can beat.

    Attributes:
        iteration_ms: Lower bound on the time of an iteration, the update at its end included.
        longest_trip_ms: Round trip of the longest sample through the stages, which is part of that
            bound. Only plans that cut samples could be shorter. For a plan with slices, it is the
            longest round trip of a micro-batch, and no part of the bound.
        whole_iteration_ms: Bound of plans of whole samples, beside that of a plan with slices;
            infinite if a sample cannot run whole. None for other plans.
    """

    iteration_ms: float
    longest_trip_ms: float
    whole_iteration_ms: float | None = None


def lower_bound(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> LowerBound:
    """Lower bound on the time of any plan of the same kind.

    If the micro-batches of the plan are padded, all plans with padded micro-batches are of the same
    kind; if some are packed, in a decoder-only model, all with padded and packed ones, and if some
    hold slices, also with those; otherwise only those with the same micro-batches on the same
    replicas.

    Args:
        pipelines: Pipelines of the plan, one per replica.
        samples: Samples of the plan, in any order.
        cost: Cost model of the plan.
        cluster: Cluster of the plan.
        may_split: Whether plans of this kind may split backward passes.
    """
    trip_ms = longest_trip_ms(pipelines, samples, cost, cluster, may_split=may_split)
    update_ms = float(cost.reduce_ms.min()) + cost.step_ms
    if _have_slices(pipelines):
        makespan_ms, whole_ms = (
            bound_ms(samples, cost, cluster, may_split=may_split)
            for bound_ms in (sliced_bound_ms, packed_bound_ms)
        )
        return LowerBound(makespan_ms + update_ms, trip_ms, whole_ms + update_ms)
    match _bounded_layout(pipelines, cost):
        case Layout.PADDED:
            makespan_ms = padded_bound_ms(samples, cost, cluster, may_split=may_split)
        case Layout.PACKED:
            makespan_ms = packed_bound_ms(samples, cost, cluster, may_split=may_split)
        case _:
            link = cluster.link
            makespan_ms = max(
                replica_bound_ms(p.costs, link, may_split=may_split) for p in pipelines
            )
    return LowerBound(makespan_ms + update_ms, trip_ms)


def longest_trip_ms(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> float:
    """Least round trip of the longest sample through the stages in plans of the same kind.

    Takes a small part of the time of `lower_bound`, whose arguments these are.
    """
    match _bounded_layout(pipelines, cost):
        case Layout.PADDED:
            return padded_trip_ms(samples, cost, cluster, may_split=may_split)
        case Layout.PACKED:
            return packed_trip_ms(samples, cost, cluster, may_split=may_split)
        case _:
            pipeline_paths = [
                PathTimes.from_costs(p.costs, cluster.link, may_split=may_split) for p in pipelines
            ]
            return max(float(paths.there_and_back_ms.max()) for paths in pipeline_paths)


def _have_slices(pipelines: Sequence[Pipeline]) -> bool:
    return any(microbatch.slice for pipeline in pipelines for microbatch in pipeline.microbatches)


def _bounded_layout(pipelines: Sequence[Pipeline], cost: CostModel) -> Layout | None:
    """The layout whose bound holds for plans of whole samples; None if that of micro-batches."""
    if _have_slices(pipelines):
        return None
    layouts = {each.layout for pipeline in pipelines for each in pipeline.microbatches}
    if layouts <= {Layout.PADDED}:
        return Layout.PADDED
    is_packed = layouts <= {Layout.PADDED, Layout.PACKED} and not cost.is_encoder_decoder
    return Layout.PACKED if is_packed else None


def replica_bound_ms(costs: StageCosts, link: Link, *, may_split: bool) -> float:
    """Lower bound on the makespan of any schedule of a replica's micro-batches.

    A stage cannot begin before some micro-batch has reached it through all earlier stages (head).
    Then it runs F and B of all micro-batches. After its last B, that micro-batch still has to go
    back through the earlier stages, with its W and a reduction on one of them (tail). Alternatively
    W comes last: then the stage runs all its work, and its reduction follows. Nor can the iteration
    be shorter than the round trip of any one micro-batch. Memory and contention between transfers
    are ignored. Reductions are those of the costs; without, the last pass counts.

    Args:
        costs: Costs of the replica's micro-batches, at least one.
        link: Link between neighbouring stages.
        may_split: Whether backward passes may be split; if not, there is no W.
    """
    paths = PathTimes.from_costs(costs, link, may_split=may_split, reduce_ms=costs.reduce_ms)
    head_ms, tail_ms = paths.head_ms.min(axis=0), paths.tail_ms.min(axis=0)
    through_ms, work_ms = paths.through_ms.sum(axis=0), paths.work_ms.sum(axis=0)
    busiest_ms = _busiest_ms(head_ms, tail_ms, through_ms, work_ms + paths.reduce_ms)
    return max(busiest_ms, float(paths.there_and_back_ms.max()))


def _busiest_ms(
    head_ms: FloatArray, tail_ms: FloatArray, through_ms: FloatArray, work_ms: FloatArray
) -> float:
    """The bound of the busiest stage, whose work includes its reduction; shapes (n_stages,)."""
    return float((head_ms + np.maximum(through_ms + tail_ms, work_ms)).max())
