"""Lower bound by the work of one stage, from its first micro-batch to its last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms

GOLDEN = (5**0.5 - 1) / 2
N_TRIES = 10  # evaluations of a multiplier, which locate it to about 1 %
MAX_LOG2_PRICE = 8.0  # of heads and tails, in multiples of the least


class MicroBatches(Protocol):
    """Micro-batches among which any partition of the samples is found, or less costly ones."""

    @property
    def can_run(self) -> BoolArray:
        """Whether each micro-batch fits, shape (n_microbatches,)."""
        ...

    @property
    def area_ms(self) -> FloatArray:
        """Bytes kept on the first stage x time, over its memory, shape (n_microbatches,)."""
        ...

    def least(self, entries: FloatArray) -> float:
        """Lower bound on the sum over any partition of the entries of its micro-batches."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LengthWindows:
    """Windows of the samples by length; the best partition is among them.

    Attributes:
        windows: Windows whose micro-batches fit.
        can_run: Whether the micro-batch of a window fits, shape (n_microbatches,).
        paths: Times of the micro-batches on their way through the stages.
        area_ms: Bytes kept on the first stage x time, over its memory, shape (n_microbatches,).
    """

    windows: WindowTable
    can_run: BoolArray
    paths: PathTimes
    area_ms: FloatArray

    @classmethod
    def from_samples(
        cls, ordered: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
    ) -> Self:
        windows = price_windows(ordered, cost, cluster)
        reduce_ms = extra_reduce_ms(cost)
        paths = PathTimes.from_costs(
            windows.costs, cluster.link, may_split=may_split, reduce_ms=reduce_ms
        )
        can_run = np.isfinite(windows.ratings.memory_share)
        costs = windows.costs
        area = np.zeros(len(can_run))
        area[can_run] = area_of(costs, paths)[can_run]
        return cls(windows, can_run, paths, area / activation_room_bytes(cost, cluster)[0])

    def least(self, entries: FloatArray) -> float:
        """Least sum over all cuts of the entries of their micro-batches, which may be negative."""
        n_rows = self.windows.shapes.n_rows
        # All cuts have the same samples, so a constant per sample changes no comparison.
        added = max(0.0, float((-entries / n_rows)[self.can_run].max()))
        table = self.windows.least(np.where(self.can_run, entries + added * n_rows, np.inf))
        least = _kernels.split_samples(
            self.windows.row_of_sample,
            table.begin,
            table.work_ms,
            table.fill_ms,
            1,
        )
        return float(least.objective_ms - added * len(self.windows.samples))


@dataclass(frozen=True, slots=True, eq=False)
class StageBound:
    """A bound by a stage that is busy from its head to its tail. Arrays of shape (n_microbatches,).

    Attributes:
        microbatches: Micro-batches that partitions are made of.
        load_ms: Work of a micro-batch on the stage.
        head_ms: Least time until a micro-batch has reached the stage.
        tail_ms: Least time after the work of the last micro-batch.
        n_replicas: Number of replicas that share the work.
    """

    microbatches: MicroBatches
    load_ms: FloatArray
    head_ms: FloatArray
    tail_ms: FloatArray
    n_replicas: int

    @classmethod
    def from_windows(
        cls, windows: LengthWindows, stage: int, n_replicas: int, *, w_is_last: bool
    ) -> Self:
        paths = windows.paths
        head_ms = paths.head_ms[:, stage]
        work_ms = paths.work_ms if w_is_last else paths.through_ms
        last_ms = np.full_like(head_ms, paths.reduce_ms[stage])
        tail_ms = last_ms if w_is_last else paths.tail_ms[:, stage]
        return cls(windows, work_ms[:, stage], head_ms, tail_ms, n_replicas)

    def bound_ms(self, price: float, work_weight: float) -> float:
        """The bound at a price of heads and tails and a weight of work against memory.

        Args:
            price: Price of a head as a multiple of the least head, likewise of a tail; at least 1.
            work_weight: Weight of work, in [0, 1]; memory has the rest.
        """
        load_ms = work_weight * self.load_ms + (1 - work_weight) * self.microbatches.area_ms
        prices_ms = 0.0
        for end_ms in (self.head_ms, self.tail_ms):
            price_ms = work_weight * price * float(end_ms[self.microbatches.can_run].min())
            load_ms = load_ms + np.minimum(work_weight * end_ms - price_ms, 0.0)
            prices_ms += price_ms
        return self.microbatches.least(load_ms) / self.n_replicas + prices_ms

    def best_bound_ms(self) -> float:
        """The largest bound found over prices and weights."""
        log2_price, weight, found_ms = 0.0, 1.0, self.bound_ms(1.0, 1.0)

        def of_price(log2_price: float) -> float:
            return self.bound_ms(2**log2_price, weight)

        def of_weight(weight: float) -> float:
            return self.bound_ms(2**log2_price, weight)

        for _ in range(2):
            log2_price, priced_ms = greatest(of_price, 0.0, MAX_LOG2_PRICE)
            weight, weighed_ms = greatest(of_weight, 0.0, 1.0)
            found_ms = max(found_ms, priced_ms, weighed_ms)
        return found_ms


def area_of(costs: StageCosts, paths: PathTimes) -> FloatArray:
    """Bytes that micro-batches need on the first stage x time in ms, shape (n_microbatches,)."""
    return np.asarray(
        costs.stored_bytes[:, 0] * paths.in_flight_ms
        + costs.forward_transient_bytes[:, 0] * paths.forward_ms[:, 0]
        + costs.backward_transient_bytes[:, 0] * (paths.gradient_ms + paths.weight_ms)[:, 0]
    )


def greatest(f: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Approximate argmax and maximum of a unimodal function, by golden-section search."""
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
