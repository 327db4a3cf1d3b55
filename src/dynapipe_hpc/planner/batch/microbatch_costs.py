"""The costs of micro-batches that are already formed."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import ExecutionMode, MicroBatch
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts


def microbatch_costs(microbatches: Sequence[MicroBatch], cost: CostModel) -> StageCosts:
    """Costs of micro-batches, each in its own layout and mode, in the given order."""
    shapes = shapes_of(microbatches, cost.known_rows)
    places: dict[ExecutionMode, list[int]] = {}
    for place, microbatch in enumerate(microbatches):
        places.setdefault(ExecutionMode(microbatch.layout, microbatch.recompute), []).append(place)
    parts = [
        cost.of_layout(mode.layout).stage_costs(shapes.take(np.array(of_mode)), mode.recompute)
        for mode, of_mode in places.items()
    ]
    return StageCosts.joined(parts).take(np.argsort(np.concatenate(list(places.values()))))
