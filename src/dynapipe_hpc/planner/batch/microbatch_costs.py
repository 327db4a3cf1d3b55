"""The costs of micro-batches that are already formed."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.data.microbatch import ExecutionMode, MicroBatch, Recompute
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.cost_model import (
    SHARED,
    Cost,
    CostModel,
    Counts,
    FloatArray,
    IntArray,
    SliceMemory,
    StageCosts,
)


class PricedReplica(NamedTuple):
    """The micro-batches of a replica in order, and what they cost.

    `form`: Forms the micro-batches; a search compares many replicas, but forms only few.
    """

    form: Callable[[], Sequence[MicroBatch]]
    costs: StageCosts
    key: Hashable  # equal only for equal replicas

    @classmethod
    def formed(cls, microbatches: Sequence[MicroBatch], cost: CostModel) -> Self:
        """Micro-batches that are already formed."""
        costs = microbatch_costs(microbatches, cost)
        return cls(lambda: microbatches, costs, tuple(microbatches))


def microbatch_costs(microbatches: Sequence[MicroBatch], cost: CostModel) -> StageCosts:
    """Costs of micro-batches, each in its own layout and mode, in the given order.

    Costs of slices include the memory that they share, see `with_slice_memory`.
    """
    shapes = shapes_of(microbatches, cost.known_rows)
    places: dict[ExecutionMode, list[int]] = {}
    for place, microbatch in enumerate(microbatches):
        places.setdefault(ExecutionMode(microbatch.layout, microbatch.recompute), []).append(place)
    parts = [
        cost.of_layout(mode.layout).stage_costs(shapes.take(np.array(of_mode)), mode.recompute)
        for mode, of_mode in places.items()
    ]
    costs = StageCosts.joined(parts).take(np.argsort(np.concatenate(list(places.values()))))
    later = later_slices(microbatches)
    if later is None:
        return costs
    of_slices = [place for place, each in enumerate(microbatches) if each.slice]
    spans = np.array([microbatches[place].slice for place in of_slices])
    keeps_all = np.array([microbatches[place].recompute is Recompute.NONE for place in of_slices])
    table = costs.table
    table[of_slices] = with_slice_memory(
        table[of_slices],
        spans,
        later[of_slices],
        cost.slice_memory,
        cache_cost=cost.cache_cost,
        keeps_all=keeps_all,
    )
    return StageCosts(table, later_slices=later)


def with_slice_memory(
    table: FloatArray,
    parts: IntArray,
    later: Counts,
    memory: SliceMemory,
    *,
    cache_cost: Cost,
    keeps_all: BoolArray,
) -> FloatArray:
    """Costs of slices with the memory that they share.

    Keys and values of all slices of a sample are charged to its first slice, whose backward pass is
    last. Sums of their gradients are charged to the slices of their tokens, but less to the last
    slice, in whose backward pass the sums begin. All slices of a sample have the transient memory
    of the slice that needs most.

    `table`: Costs of slices as if they were rows, shape (n_slices, n_stages, len(Cost)), or with
    kinds of stages in place of stages. `parts`: Begin and end of each slice and tokens of its
    sample, shape (n_slices, 3); slices of a sample follow each other. `memory`: What tokens of
    slices keep, on the same stages or kinds. `keeps_all`: Whether nothing of a slice is recomputed,
    shape (n_slices,).
    """
    table = table.copy()
    begin, end, n_tokens = parts.T[..., None]
    n_own, is_last = end - begin, (later == 0)[:, None]
    stored = table[..., Cost.STORED_BYTES] - np.where(keeps_all[:, None], n_own * memory.spared, 0)
    freed = np.maximum(stored - begin * memory.sums, 0)
    table[..., Cost.STORED_BYTES] = np.where(is_last, freed, stored + n_own * memory.sums)
    firsts = np.flatnonzero(parts[:, 0] == 0)
    n_slices = later[firsts].astype(np.int64) + 1
    for shared in SHARED:
        table[..., shared] = np.maximum.reduceat(table[..., shared], firsts).repeat(n_slices, 0)
    holding = slice(None) if cache_cost in SHARED else firsts
    table[holding, :, cache_cost] += n_tokens[holding] * memory.kept
    return table


def later_slices(microbatches: Sequence[MicroBatch]) -> Counts | None:
    """Number of later slices of the same sample, per micro-batch; None if there are no slices.

    Raises `ValueError`: The slices of a sample do not follow each other.
    """
    if not any(microbatch.slice for microbatch in microbatches):
        return None
    later = np.zeros(len(microbatches), np.uint32)
    for place in reversed(range(len(microbatches))):
        part = microbatches[place].slice
        if part is None or part.end == part.n_tokens:
            continue
        behind = microbatches[place + 1] if place + 1 < len(microbatches) else None
        if behind is None or behind.slice is None or behind.slice.begin != part.end:
            raise ValueError(f"the slices of sample {microbatches[place].sample_ids[0]} are apart")
        later[place] = later[place + 1] + 1
    return later
