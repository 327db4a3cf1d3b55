"""Lower bound on the time of an iteration of padded micro-batches."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.stage_bound import LengthWindows, StageBound
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms


def padded_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """Lower bound on the makespan of any plan of padded micro-batches, with `extra_reduce_ms`.

    It holds for every partition of the samples, every mode in which a micro-batch fits alone,
    every assignment to replicas and every schedule, and is the largest of these relaxations:

    - *Round trip of a sample*: each sample goes through all stages and back, at best alone and in
      the fastest mode that fits, and stages reduce their gradients after it. All else is ignored.
    - *Work of a stage, with head and tail*: a stage begins when a first micro-batch has reached it,
      runs F and B of all, and then a last micro-batch goes back from it. Alternatively W comes
      last: the stage runs all its work, and its reduction follows. The slowest replica takes at
      least the mean over replicas, each with its own first and last micro-batch. Idle time between
      passes is ignored, and so is memory except that each micro-batch must fit alone.
    - *Memory in flight*: the bytes that a micro-batch keeps on the first stage, from its F there to
      the end of its B, and its transient bytes form an area in bytes x ms; all areas of a replica
      fit into the stage's memory x the replica's time. That the micro-batches in flight may not
      fill the memory exactly is ignored.

    The last two are weighed against each other, as a plan can trade one for the other by
    recomputing; and micro-batches pay for a head or a tail what it exceeds a price, while every
    replica pays the price (Lagrangian relaxation). Any weight and any price give a bound.

    All of these are sums over micro-batches of terms that never fall with more rows or longer rows.
    So the least sum over partitions is that of a partition into windows of the samples by length.
    Proof: take any partition, its micro-batches by row length, longest first, and give each as many
    samples as before, but always the longest that remain. No row grows: the micro-batches before
    the i-th have as many samples as before, so in the old partition some sample at least as long
    as the i-th's new first one was in it or in a later one, whose rows were no longer. Where inputs
    and targets are padded separately, this holds for each side, with all samples as short as the
    shortest on the other side.

    Args:
        samples: Samples of one iteration, at least one.
        cost: Cost model, in which more or longer rows never cost less.
        cluster: The cluster, with number of replicas, memory limit and link.
        may_split: Whether backward passes may be split.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.

    Source:
        Fisher, "The Lagrangian relaxation method for solving integer programming problems",
        Management Science 27, 1981.
    """
    kinds = (False, True) if may_split else (False,)
    by_length = [
        LengthWindows.from_samples(side, cost, cluster, may_split=may_split)
        for side in _sides(samples, cost.is_encoder_decoder)
    ]
    stages = [
        StageBound.from_windows(windows, stage, cluster.n_replicas, w_is_last=w_is_last)
        for windows in by_length
        for w_is_last in kinds
        for stage in range(cluster.n_stages)
    ]
    tightest = max(stages, key=lambda stage: stage.bound_ms(1.0, 1.0))
    reduce_ms = extra_reduce_ms(cost)
    trip_ms = padded_trip_ms(samples, cost, cluster, may_split=may_split, reduce_ms=reduce_ms)
    return max(trip_ms, tightest.best_bound_ms())


def _sides(samples: Sequence[Sample], is_encoder_decoder: bool) -> list[list[Sample]]:
    """The samples, longest first; in an encoder-decoder model by each side, the other shortest."""
    if not is_encoder_decoder:
        return [order_samples(samples)]
    inputs = min(sample.input_tokens for sample in samples)
    targets = min(sample.target_tokens for sample in samples)
    return [
        order_pairs([replace(sample, target_tokens=targets) for sample in samples]),
        order_pairs([replace(sample, input_tokens=inputs) for sample in samples]),
    ]


def padded_trip_ms(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
    reduce_ms: FloatArray | None = None,
) -> float:
    """Longest round trip of a sample alone in a padded row, each in the fastest mode that fits.

    Other arguments and errors are those of `padded_bound_ms`, of which it is a part. With
    `reduce_ms`, stages reduce their gradients after it, see `PathTimes`.
    """
    rows = np.unique(np.stack(row_lengths(samples, cost.is_encoder_decoder), axis=1), axis=0)
    shapes = Shapes.padded(np.ones(len(rows), np.int64), *np.ascontiguousarray(rows.T))
    room_bytes = activation_room_bytes(cost, cluster)
    trips_ms = []
    for recompute in cost.recompute_modes:
        costs = cost.stage_costs(shapes, recompute)
        paths = PathTimes.from_costs(costs, cluster.link, may_split=may_split, reduce_ms=reduce_ms)
        trips_ms.append(np.where(fits(costs, room_bytes), paths.there_and_back_ms, np.inf))
    return float(np.min(trips_ms, axis=0).max())
