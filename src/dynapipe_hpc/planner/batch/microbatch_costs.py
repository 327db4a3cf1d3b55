"""The costs of micro-batches that are already formed."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import ExecutionMode, MicroBatch, Recompute
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.cost_model import SHARED, Cost, CostModel, Counts, StageCosts

_SHARED = list(SHARED)


def microbatch_costs(microbatches: Sequence[MicroBatch], cost: CostModel) -> StageCosts:
    """Costs of micro-batches, each in its own layout and mode, in the given order.

    Keys and values of all slices of a sample count to the first one, which goes back last. Sums
    of their gradients count to the slices of their tokens, and less to the last one, whose backward
    pass they begin in. The slices follow each other, and have the transient memory of the one that
    needs most.
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
    table, memory = costs.table, cost.slice_memory
    for place, microbatch in enumerate(microbatches):
        if (part := microbatch.slice) is None:
            continue
        stored, n_own = table[place, :, Cost.STORED_BYTES], part.end - part.begin
        if microbatch.recompute is Recompute.NONE:
            stored -= n_own * memory.spared
        if later[place]:
            stored += n_own * memory.sums
        else:
            np.maximum(stored - part.begin * memory.sums, 0, out=stored)
        if part.begin == 0:
            group = slice(place, place + int(later[place]) + 1)
            table[group, :, _SHARED] = table[group][..., _SHARED].max(axis=0)
            holding = group if cost.cache_cost in SHARED else place
            table[holding, :, cost.cache_cost] += part.n_tokens * memory.kept
    return StageCosts(table, later_slices=later)


def later_slices(microbatches: Sequence[MicroBatch]) -> Counts | None:
    """Number of slices of its sample that follow each micro-batch; None if there are no slices.

    Raises:
        ValueError: The slices of a sample do not follow each other.
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
