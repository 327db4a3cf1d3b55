"""How short an iteration of padded micro-batches could be at best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import Candidates, candidates
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, fits
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes
from dynapipe_hpc.planner.schedule.ways import Ways

GOLDEN = (5**0.5 - 1) / 2
N_TRIES = 10  # values of a multiplier, after which it is known to about 1 %
LARGEST_LOG2_PRICE = 8.0  # of heads and tails, in multiples of the least


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
    sides = [
        _Side.of(side, cost, cluster, may_split=may_split)
        for side in _sides(samples, cost.is_encoder_decoder)
    ]
    busiest = [
        _Busiest.of(side, stage, cluster.n_replicas, w_is_last=w_is_last)
        for side in sides
        for w_is_last in kinds
        for stage in range(cluster.n_stages)
    ]
    tightest = max(busiest, key=lambda stage: stage.bound_ms(1.0, 1.0))
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


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Windows of the samples by length, which no other partition beats.

    Attributes:
        windows: Those that fit.
        can_run: Shape (n_microbatches,), whether the windows' micro-batches fit.
        ways: Their ways; as many.
        area_ms: What they keep on the first stage x for how long, over its memory; as many.
    """

    windows: Candidates
    can_run: BoolArray
    ways: Ways
    area_ms: FloatArray

    @classmethod
    def of(
        cls, ordered: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
    ) -> Self:
        windows = candidates(ordered, cost, cluster)
        ways = Ways.of(windows.costs, cluster.link, may_split=may_split)
        can_run = np.isfinite(windows.ratings.memory_share)
        *_, stored, forward, backward = windows.costs.table[:, 0].T
        area = np.zeros(len(can_run))
        area[can_run] = (
            stored * ways.in_flight_ms
            + forward * ways.forward_ms[:, 0]
            + backward * ways.gradient_ms[:, 0]
        )[can_run]
        return cls(windows, can_run, ways, area / activation_room_bytes(cost, cluster)[0])

    def least(self, entries: FloatArray) -> float:
        """The least sum over all cuts, given what a micro-batch adds, which may be negative."""
        n_rows = self.windows.shapes.n_rows
        # All cuts have all samples, so what is added per sample changes no comparison.
        added = max(0.0, float((-entries / n_rows)[self.can_run].max()))
        table = self.windows.least(np.where(self.can_run, entries + added * n_rows, np.inf))
        least = _kernels.split_samples(
            self.windows.row_of_sample, table.begin, table.work_ms, table.fill_ms, 1
        )[1]
        return float(least - added * len(self.windows.samples))


@dataclass(frozen=True, slots=True, eq=False)
class _Busiest:
    """A stage that is busy from its head to its tail. Arrays of shape (n_microbatches,).

    Attributes:
        side: Its windows.
        load_ms: What a micro-batch gives it to do.
        head_ms: Until a micro-batch can have come to it.
        tail_ms: What follows after a micro-batch.
        n_replicas: Those that share the work.
    """

    side: _Side
    load_ms: FloatArray
    head_ms: FloatArray
    tail_ms: FloatArray
    n_replicas: int

    @classmethod
    def of(cls, side: _Side, stage: int, n_replicas: int, *, w_is_last: bool) -> Self:
        ways = side.ways
        head_ms = ways.head_ms[:, stage]
        if w_is_last:
            return cls(side, ways.work_ms[:, stage], head_ms, np.zeros_like(head_ms), n_replicas)
        return cls(side, ways.through_ms[:, stage], head_ms, ways.tail_ms[:, stage], n_replicas)

    def bound_ms(self, price: float, work_weight: float) -> float:
        """The bound at a price of heads and tails and a weight of work against memory.

        Args:
            price: At least 1; that of a head is as many times the least one, likewise of a tail.
            work_weight: In [0, 1]; the rest is of memory.
        """
        load_ms = work_weight * self.load_ms + (1 - work_weight) * self.side.area_ms
        prices_ms = 0.0
        for end_ms in (self.head_ms, self.tail_ms):
            price_ms = work_weight * price * float(end_ms[self.side.can_run].min())
            load_ms = load_ms + np.minimum(work_weight * end_ms - price_ms, 0.0)
            prices_ms += price_ms
        return self.side.least(load_ms) / self.n_replicas + prices_ms

    def best_bound_ms(self) -> float:
        """The largest bound that some prices and weights give."""
        log2_price, weight, found_ms = 0.0, 1.0, self.bound_ms(1.0, 1.0)

        def of_price(log2_price: float) -> float:
            return self.bound_ms(2**log2_price, weight)

        def of_weight(weight: float) -> float:
            return self.bound_ms(2**log2_price, weight)

        for _ in range(2):
            log2_price, priced_ms = _greatest(of_price, 0.0, LARGEST_LOG2_PRICE)
            weight, weighed_ms = _greatest(of_weight, 0.0, 1.0)
            found_ms = max(found_ms, priced_ms, weighed_ms)
        return found_ms


def _greatest(f: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Where a function of one peak is greatest, about, and what it is there: golden sections."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    of_left, of_right = f(left), f(right)
    best = max((of_left, left), (of_right, right))
    for _ in range(N_TRIES):
        if of_left >= of_right:
            high, right, of_right = right, left, of_left
            left = high - GOLDEN * (high - low)
            of_left = f(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + GOLDEN * (high - low)
            of_right = f(right)
        best = max(best, (of_left, left), (of_right, right))
    return best[1], best[0]
