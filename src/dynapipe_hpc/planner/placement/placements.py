"""Placements of layers on stages."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts
from dynapipe_hpc.planner.cost.part_costs import PartCosts, probe_costs
from dynapipe_hpc.planner.placement.typical_sizes import TypicalSizes

TIES = 1 + 1e-9  # what differs by less differs by rounding


def placements(
    source: CostSource, shape: ModelShape, cluster: Cluster, sizes: TypicalSizes
) -> list[tuple[int, ...]]:
    """How many layers every stage may hold: equal shares, and those that keep stages even.

    There is one of the latter for every mode of recomputation, as it changes what a layer takes
    beside a head: of all placements of consecutive layers, at least one per stage, the one that
    exceeds the memory of a stage by least (by nothing, as a rule); of these, whose slowest stage
    takes the least time for a micro-batch of common size; of these, whose stages differ least,
    by the sum of squares; of these, with fewest layers on early stages, which keep more
    micro-batches.

    Time counts embedding, head and loss. Memory is that of the model and of as many common
    micro-batches as 1F1B has in flight on the stage, or of the longest sample in the mode that
    keeps least, if that is more.

    Costs counted as the authors of the paper do have equal shares, as theirs, and so does a model
    whose costs are not known at these sizes.

    Args:
        source: Estimates or measurements.
        shape: The model.
        cluster: The stages.
        sizes: What the model is placed for.

    Returns:
        Different ones, equal shares first.

    Raises:
        InputError: The measurements are of another model.
    """
    equal = shape.equal_shares(cluster.n_stages)
    is_authors = isinstance(source, MeasuredCosts) and source.config.accounting == "authors"
    if is_authors or cluster.n_stages == 1:
        return [equal]
    probe = _Probe(probe_costs(source, shape, cluster), shape, cluster)
    found = (probe.placement(sizes, mode) for mode in probe.cost.recompute_modes)
    return list(dict.fromkeys([equal, *(counts for counts in found if counts)]))


@dataclass(frozen=True, slots=True)
class _Probe:
    """What stages cost, from `cost`, that of `probe_costs`."""

    cost: CostModel
    shape: ModelShape
    cluster: Cluster

    def placement(self, sizes: TypicalSizes, mode: Recompute) -> tuple[int, ...] | None:
        """For one mode; None where its costs are not known."""
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
        """As `PartCosts.on_stages`."""
        common = self.cost.stage_costs(sizes.common, mode)
        longest = self.cost.stage_costs(sizes.longest, self.cost.recompute_modes[-1])
        waiting = np.arange(self.cluster.n_stages - 1, -1, -1)[:, np.newaxis, np.newaxis]
        stored = self._on_stages(common.stored_bytes[0])
        in_flight = stored * waiting + self._on_stages(activation_bytes(common)[0])
        alone = activation_bytes(longest)[0]
        if np.isfinite(alone).all():  # else no placement can run it
            in_flight = np.maximum(in_flight, self._on_stages(alone))
        return self._on_stages(self.cost.static_bytes) + in_flight


def best_placement(work_ms: FloatArray, over_bytes: FloatArray) -> tuple[int, ...]:
    """The placement that `placements` describes, by dynamic programming.

    Args:
        work_ms: Shape (n_stages, n_layers + 1, n_layers + 1): of stage s with the layers i to
            j - 1; infinite where it must not hold them.
        over_bytes: Same shape: by how much they exceed the memory of the stage.
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
    return tuple(int(count) for count in np.diff(edges))


def _least_to_come(
    tables: FloatArray, join: Callable[[FloatArray, FloatArray], FloatArray]
) -> list[FloatArray]:
    """Of stage s and those behind it, with the layers from i on; a list by s of arrays by i."""
    rest = np.full(tables.shape[1], np.inf)
    rest[-1] = 0
    found = [rest]
    for table in tables[::-1]:
        found.append(join(table, found[-1]).min(axis=1))
    return found[::-1]


def _known(size: Shapes, cost: CostModel, mode: Recompute) -> Shapes:
    """With as many rows as costs are known for, halving them."""
    while size.n_rows[0] > 1 and not np.isfinite(cost.stage_costs(size, mode).table).all():
        size = size._replace(n_rows=size.n_rows // 2)
    return size
