"""Lower bound on the time of an iteration of padded and packed micro-batches."""

from collections.abc import Iterator, Sequence

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.row_cells import RowCells, costs_of_modes, lengths, shapes_of
from dynapipe_hpc.planner.schedule.stage_bound import StageBound
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms


def packed_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """Lower bound on the makespan of any plan of padded and packed micro-batches.

    The makespan includes `extra_reduce_ms`.

    It holds for every partition of the samples, every layout and mode in which a micro-batch fits
    alone, every assignment to replicas and every schedule. Its relaxations are those of
    `padded_bound_ms`: the round trip of the longest sample, the work of a stage with a head and a
    tail for each replica, and the memory in flight.

    As packed micro-batches may have any samples, the least sum over partitions is not known. It is
    bounded from below by a sum over samples, see `RowCells.least`.

    Args:
        samples: Samples of one iteration, at least one.
        cost: Cost model of a decoder-only model, in which more or longer rows never cost less.
        cluster: The cluster, with number of replicas, memory limit and link.
        may_split: Whether backward passes may be split.
    """
    cells = RowCells.from_samples(samples, cost, cluster, may_split=may_split)
    reduce_ms = extra_reduce_ms(cost)
    stages = list(stage_bounds(cells, cluster, reduce_ms, may_split=may_split))
    tightest = max(stages, key=lambda stage: stage.bound_ms(1.0, 1.0))
    trip_ms = packed_trip_ms(samples, cost, cluster, may_split=may_split, reduce_ms=reduce_ms)
    return max(tightest.best_bound_ms(), trip_ms)


def packed_trip_ms(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
    reduce_ms: FloatArray | None = None,
) -> float:
    """Least round trip of a micro-batch with the sample of most pairs, which it has at least.

    Other arguments and errors are those of `packed_bound_ms`, of which it is a part. With
    `reduce_ms`, stages reduce their gradients after it, see `PathTimes`.
    """
    length = lengths(samples, cost.known_rows)
    most_pairs = float(tokens_of(samples, "attention_pairs").max())
    n_rows = np.maximum(1.0, most_pairs / length[1:] ** 2)
    least_ms = np.inf
    for costs in costs_of_modes(shapes_of(n_rows, length[:-1]), cost):
        fitting = costs.take(np.flatnonzero(fits(costs, activation_room_bytes(cost, cluster))))
        paths = PathTimes.from_costs(
            fitting, cluster.link, may_split=may_split, reduce_ms=reduce_ms
        )
        least_ms = min(least_ms, float(paths.there_and_back_ms.min(initial=np.inf)))
    return least_ms


def stage_bounds(
    cells: RowCells, cluster: Cluster, reduce_ms: FloatArray, *, may_split: bool
) -> Iterator[StageBound]:
    """Bounds of all stages, in which W is last, and in which a micro-batch goes back from there."""
    work_ms, through_ms, head_ms, tail_ms, _ = cells.costs
    n_replicas = cluster.n_replicas
    for stage in range(cluster.n_stages):
        head = head_ms[:, stage]
        yield StageBound(cells, through_ms[:, stage], head, tail_ms[:, stage], n_replicas)
        if may_split:
            last_ms = np.full_like(head, reduce_ms[stage])
            yield StageBound(cells, work_ms[:, stage], head, last_ms, n_replicas)
