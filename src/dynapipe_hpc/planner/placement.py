"""Placements of layers on stages that balance the costs of stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, Shapes
from dynapipe_hpc.planner.cost.from_config import CostSource, costs_of

MICROBATCHES_PER_STAGE = (4, 1)
"""Numbers of micro-batches per stage that are to be expected, the most common first.

Fewer would leave stages idle. There are as few as one where a GPU waits for launches, so that large
micro-batches take hardly longer than small ones, except in the head.
"""


class TypicalSizes(NamedTuple):
    """A common and a large micro-batch."""

    common: Shapes
    longest: Shapes


def typical_sizes(
    lengths: RowLengths, tokens_per_batch: int, cluster: Cluster
) -> list[TypicalSizes]:
    """Sizes of micro-batches that are to be expected, before any iteration is planned.

    The common length is such that half of all tokens are in rows of at most this length. A common
    micro-batch has an equal share of a global batch: `MICROBATCHES_PER_STAGE` of them per stage of
    every replica.

    `lengths`: Row lengths of all samples, at least one.
    """
    common = [_of_half_the_tokens(side) for side in lengths]
    longest = _one(1, *(int(side.max()) for side in lengths))
    shares = (tokens_per_batch / (n * cluster.n_plans) for n in MICROBATCHES_PER_STAGE)
    rows = (max(1, int(share / sum(common))) for share in shares)
    return [TypicalSizes(_one(n_rows, *common), longest) for n_rows in rows]


def _of_half_the_tokens(tokens: IntArray) -> int:
    ascending = np.sort(tokens)
    up_to = np.cumsum(ascending)
    return int(ascending[np.searchsorted(up_to, up_to[-1] / 2)])


def _one(*sizes: int) -> Shapes:
    return Shapes.padded(*(np.array([size]) for size in sizes))


# Layers of the stages that are compared, per side: first, middle, middle with two layers, last.
PROBE = (1, 1, 2, 1)


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Costs of the parts of a stage, which add up: times, or bytes."""

    n_first_side: int
    first_layer: float  # cost of a layer of the encoder or, without one, of any layer
    second_layer: float  # cost of a layer of a decoder that follows an encoder; 0 without one
    first_side: float
    second_side: float
    first: float
    turn: float  # additional cost of the stage where such a decoder begins
    last: float

    @classmethod
    def of_probe(cls, costs: FloatArray, shape: ModelShape) -> Self:
        """Costs of parts, from the costs of the stages of `probe_costs`."""
        first, middle, two, last = costs[:4]
        layer = two - middle
        n_first_side, *n_others = shape.layer_counts.values()
        if not n_others:
            ends = (first - middle, 0.0, last - middle)
            return cls(n_first_side, layer, 0.0, middle - layer, 0.0, *ends)
        turn, after, two_after, last = costs[4:]
        second = two_after - after
        ends = (first - middle, turn - after, last - after)
        return cls(n_first_side, layer, second, middle - layer, after - second, *ends)

    def on_stages(self, n_layers: int, n_stages: int, impossible: float = np.inf) -> FloatArray:
        """Cost of every stage, if it held the layers i to j - 1 of all `n_layers`.

        Shape (n_stages, n_layers + 1, n_layers + 1), by stage, i and j; `impossible` where the
        stage would hold no layer.
        """
        edges = np.arange(n_layers + 1)
        of_first_side = np.minimum(edges, self.n_first_side)
        n_first = of_first_side - of_first_side[:, np.newaxis]
        n_second = edges - edges[:, np.newaxis] - n_first
        held = n_first * self.first_layer + n_second * self.second_layer
        held = held + (n_first > 0) * self.first_side + (n_second > 0) * self.second_side
        table = np.repeat(held[np.newaxis], n_stages, axis=0)
        table[1:, : self.n_first_side + 1, self.n_first_side + 1 :] += self.turn
        table[0] += self.first
        table[-1] += self.last
        table[:, np.subtract.outer(edges, edges) >= 0] = impossible
        return table


def probe_costs(source: CostSource, shape: ModelShape, cluster: Cluster) -> CostModel:
    """The costs of a pipeline whose stages differ in one part each, see `PROBE`."""
    placement = Placement(PROBE * len(shape.layer_counts))
    probe = shape.with_layers(sum(PROBE))
    stages = cluster.model_copy(update={"n_stages": placement.n_stages})
    return costs_of(source, probe, placement, stages)[0]


TIES = 1 + 1e-9  # smaller differences come from rounding


def placements(
    source: CostSource,
    shape: ModelShape,
    cluster: Cluster,
    sizes: Sequence[TypicalSizes],
    *,
    layout: Layout = Layout.PADDED,
) -> list[Placement]:
    """Placements to choose from: equal shares, and balanced ones by size and recomputation mode.

    Modes differ because recomputation makes a layer slower compared with the head, sizes because
    the head's time may grow faster with tokens than a layer's. A balanced placement is the best by
    the following criteria, of which each breaks the ties of the one before:

    1. The largest excess of a stage over its memory is least; as a rule, it is zero.
    2. The slowest stage takes the least time for a micro-batch of common size.
    3. Stages differ least: the sum of their squared times is least.
    4. Early stages hold the fewest layers, because they keep more micro-batches.

    Time includes embedding, head and loss. Memory is that of the model plus the larger of two: all
    micro-batches of common size that 1F1B has in flight on the stage, or the longest sample in
    the mode that keeps least.

    Equal shares are the only placement for a model whose costs are not known at these sizes.

    `sizes`: Micro-batches that the model is placed for, the most common sizes first. Returns the
    placements without duplicates, equal shares first.
    """
    equal = Placement.equal_shares(shape.n_all_layers, cluster.n_stages)
    probe = _Probe(probe_costs(source, shape, cluster).of_layout(layout), shape, cluster)
    candidates = (
        probe.placement(each, mode) for each in sizes for mode in probe.cost.recompute_modes
    )
    return list(dict.fromkeys([equal, *filter(None, candidates)]))


@dataclass(frozen=True, slots=True)
class _Probe:
    """Costs of stages with any layers, derived from the costs of the stages of `probe_costs`."""

    cost: CostModel
    shape: ModelShape
    cluster: Cluster

    def placement(self, sizes: TypicalSizes, mode: Recompute) -> Placement | None:
        """The balanced placement of a mode; None if its costs are not known."""
        common = _known(sizes.common, self.cost, mode)
        work_ms = self.cost.stage_costs(common, mode).work_ms[0]
        if not np.isfinite(work_ms).all():
            return None
        needed = self._needed_bytes(TypicalSizes(common, sizes.longest), mode)
        over_bytes = (needed - self.cluster.device_memory_bytes).clip(min=0)
        return best_placement(self._on_stages(work_ms, np.inf), over_bytes)

    def _on_stages(self, of_probe: FloatArray, impossible: float = 0.0) -> FloatArray:
        parts = PartCosts.of_probe(of_probe, self.shape)
        return parts.on_stages(self.shape.n_all_layers, self.cluster.n_stages, impossible)

    def _needed_bytes(self, sizes: TypicalSizes, mode: Recompute) -> FloatArray:
        """Memory that each stage needs with each range of layers, as in `PartCosts.on_stages`."""
        common = self.cost.stage_costs(sizes.common, mode)
        longest = self.cost.stage_costs(sizes.longest, self.cost.recompute_modes[-1])
        waiting = np.arange(self.cluster.n_stages - 1, -1, -1)[:, np.newaxis, np.newaxis]
        stored = self._on_stages(common.stored_bytes[0])
        in_flight = stored * waiting + self._on_stages(activation_bytes(common)[0])
        alone = activation_bytes(longest)[0]
        if np.isfinite(alone).all():  # else no placement can run it
            in_flight = np.maximum(in_flight, self._on_stages(alone))
        return self._on_stages(self.cost.static_bytes) + in_flight


def best_placement(work_ms: FloatArray, over_bytes: FloatArray) -> Placement:
    """The balanced placement, see `placements`, by dynamic programming.

    `work_ms`: Time of stage s with the layers i to j - 1, shape (n_stages, n_layers + 1, n_layers +
    1); infinite where the stage must not hold them. `over_bytes`: Memory that the stage lacks for
    these layers; same shape.
    """
    possible = np.isfinite(work_ms)
    for table in (over_bytes, work_ms):
        most = _least_to_come(np.where(possible, table, np.inf), np.maximum)[0][0]
        possible &= table <= most * TIES
    squares = np.where(possible, work_ms**2, np.inf)
    to_come = _least_to_come(squares, np.add)
    edges = [0]
    for table, rest in zip(squares, to_come[1:], strict=True):
        totals = table[edges[-1]] + rest
        edges.append(int(np.argmax(totals <= totals.min() * TIES)))
    return Placement(tuple(int(count) for count in np.diff(edges)))


def _least_to_come(
    tables: FloatArray, join: Callable[[FloatArray, FloatArray], FloatArray]
) -> list[FloatArray]:
    """Least cost of stage s and all later stages with the layers from i on: per s an array by i."""
    rest = np.full(tables.shape[1], np.inf)
    rest[-1] = 0
    candidates = [rest]
    for table in tables[::-1]:
        candidates.append(join(table, candidates[-1]).min(axis=1))
    return candidates[::-1]


def _known(size: Shapes, cost: CostModel, mode: Recompute) -> Shapes:
    while size.n_rows[0] > 1 and not np.isfinite(cost.stage_costs(size, mode).table).all():
        size = Shapes.padded(size.n_rows // 2, size.row_tokens, size.target_tokens)
    return size
