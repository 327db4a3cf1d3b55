"""How short an iteration of padded micro-batches could be at best."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.schedule.stage_bound import LengthWindows, StageBound
from dynapipe_hpc.planner.schedule.ways import Ways


def padded_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """A time that no plan of padded micro-batches can beat.

    It holds for every partition of the samples, every mode in which a micro-batch fits alone,
    every assignment to replicas and every schedule, and is the largest of these relaxations:

    - *A sample's way*: each has to go through all stages and back, at best alone and in the mode
      of those that fit in which that is fastest. Nothing else happens meanwhile.
    - *A stage's work, with head and tail*: a stage begins when a first micro-batch has come to it,
      has F and B of all to run, and then a last micro-batch has to go back from it. Or, where W
      may come last, it has all work to run and nothing behind it. The slowest replica takes at
      least the mean, in which every replica has its own first and last micro-batch. Waiting
      between passes is ignored, and so is memory but for one micro-batch at a time.
    - *Memory in flight*: what a micro-batch keeps on the first stage, from its F there to the end
      of its B, and what its passes need on top, is an area in bytes x ms; all areas of a replica
      fit into the stage's memory x the replica's time. That micro-batches in flight at once may
      not add up to exactly what there is, is ignored.

    The last two are weighed against each other, as a plan may buy one with the other by
    recomputing; and micro-batches pay for a head or a tail what it exceeds a price, while every
    replica pays the price (Lagrangian relaxation). Any weight and any price give a bound.

    What all of these add up per micro-batch never falls with more rows or longer rows. So the
    least sum over partitions is that of a partition into windows of the samples by length: give
    the micro-batches of any partition, longest rows first, as many samples as before, but now the
    longest that are left. No row grows: those before the i-th have as many samples as before, so
    they had to leave one at least as long as its first to it or to a later one, whose rows were
    not longer than its own. Where inputs and targets are padded on their own, this holds for each
    side while all samples are as short as the shortest on the other.

    Args:
        samples: Of one iteration, at least one.
        cost: Predicts time and memory; more or longer rows never cost less.
        cluster: Its replicas share the work, its memory limits what is in flight.
        may_split: Whether backward passes may be split.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.

    Source:
        Fisher, "The Lagrangian relaxation method for solving integer programming problems",
        Management Science 27, 1981.
    """
    kinds = (False, True) if may_split else (False,)
    by_length = [
        LengthWindows.of(side, cost, cluster, may_split=may_split)
        for side in _sides(samples, cost.is_encoder_decoder)
    ]
    stages = [
        StageBound.of(windows, stage, cluster.n_replicas, w_is_last=w_is_last)
        for windows in by_length
        for w_is_last in kinds
        for stage in range(cluster.n_stages)
    ]
    tightest = max(stages, key=lambda stage: stage.bound_ms(1.0, 1.0))
    way_ms = _longest_way_ms(samples, cost, cluster, may_split=may_split)
    return max(way_ms, tightest.best_bound_ms())


def _sides(samples: Sequence[Sample], is_encoder_decoder: bool) -> list[list[Sample]]:
    """The samples longest first; if both sides are padded, once by each, the other shortest."""
    if not is_encoder_decoder:
        return [order_samples(samples)]
    inputs = min(sample.input_tokens for sample in samples)
    targets = min(sample.target_tokens for sample in samples)
    return [
        order_pairs([replace(sample, target_tokens=targets) for sample in samples]),
        order_pairs([replace(sample, input_tokens=inputs) for sample in samples]),
    ]


def _longest_way_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """The longest way there and back of a sample alone, each in the fastest mode that fits."""
    rows = np.unique(np.stack(row_lengths(samples, cost.is_encoder_decoder), axis=1), axis=0)
    shapes = Shapes(np.ones(len(rows), np.int64), *np.ascontiguousarray(rows.T))
    room_bytes = activation_room_bytes(cost, cluster)
    of_mode = []
    for mode in cost.recompute_modes:
        costs = cost.stage_costs(shapes, mode)
        way_ms = Ways.of(costs, cluster.link, may_split=may_split).there_and_back_ms
        of_mode.append(np.where(fits(costs, room_bytes), way_ms, np.inf))
    return float(np.min(of_mode, axis=0).max())
